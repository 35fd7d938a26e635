"""Texts that mean no good, each for one kind of reader: what somebody could put into a name, a reason or a log line."""

METRICS = '{"Namespace":"Rerail","Dimensions":[[]],"Metrics":[{"Name":"Completed"}]}'
EMF = f'{{"_aws":{{"Timestamp":1,"CloudWatchMetrics":[{METRICS}]}},"Completed":1}}'

HOSTILE = {
    "slack mention": "<!channel> <!here> <@U0LAN0Z89> <!subteam^S1>",
    "teams mention": "@channel @here @everyone <at>everyone</at>",
    "slack link": "<https://evil.example|approve here>",
    "markdown link": "[approve](https://evil.example) ![x](https://evil.example/x.png)",
    "markdown": "**bold** _it_ `code` ~no~ # title\n> quote",
    "mail header": "gpt\r\nBcc: everybody@example.com\r\n\r\nbody",
    "a part of ours": "x\n\nWhat to do:\n  rerail stop everything",
    "html": "<script>alert(1)</script><img src=x onerror=alert(2)></pre></style><!--",
    "attribute": '" onmouseover="alert(1)" x=\'y',
    "template": "{{ 7 * 7 }} {% raw %} ${7*7} #{7*7} %(x)s {0}",
    "style": "</style><style>body{background:url(https://evil.example)}",
    "rich markup": "[bold red]x[/] [link=https://evil.example]y[/link] [/] [@click=app.bell]z[/]",
    "colour": "\x1b[31mred\x1b[0m \x9b31m",
    "title of the terminal": "\x1b]0;rm -rf\x07 \x1b]2;x\x1b\\",
    "link of the terminal": "\x1b]8;;https://evil.example\x1b\\rerail\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "clears the screen": "\x1b[2J\x1b[H\x1bc",
    "overwrites its line": "held: out of memory\rcompleted            \x08\x08\x08",
    "turned around": "\u202egnp.exe\u202c \u2066x\u2069 \u200f",
    "invisible": "a\u200bb\ufeff\u00ad\u2060 \U000e0041",
    "line ends": "one\u2028two\u2029three\x85four\x0bfive\x0csix",
    "nothing": "\x00\x01\x7f",
    "half a character": "\ud800 \udfff",
    "json": '","level":"ERROR","message":"forged","x":"',
    "a log line": 'x\n{"level":"INFO","message":"looked","run":"forged"}',
    "metrics in a log line": EMF,
    "metrics on a line of their own": f"x\n{EMF}\n",
    "formula": '=HYPERLINK("https://evil.example") +1 -1 @SUM(1)',
    "shell": "; rm -rf / $(reboot) `reboot` && x | y",
    "path": "../../../etc/passwd\\..\\x",
    "long": "A" * 100_000,
}
