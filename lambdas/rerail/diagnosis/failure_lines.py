"""Find the lines of a FailureReason or a log that say why a program failed.

Source code, comments, settings, progress and warnings contain the words of failures too: "falls back when CUDA is out
of memory", `NCCL_TIMEOUT=1800`, `handle_nan(loss)`. In a traceback only the exception's own line and message count.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

from rerail.model.lazy_pattern import LazyPattern

MAX_MESSAGE_LINES = 12
MAX_LOGGERS = 8

# Colors and movements of a terminal's cursor; some logs lose the first character of a color.
_CONTROL = LazyPattern(r"\x1b\[[\d;?]{0,20}[A-Za-z]|\ufffd?\[\d{1,2}(?:;\d{1,3}){0,4}m(?![\]\d])")
# A logger's object, with what a log driver puts before it; the names of its message, its traceback and its level.
_OBJECT = LazyPattern(r"(?m)^([^{}\n]{0,120})(\{\".{1,20000}\})[ \t\r]{0,3}$")
_MESSAGES, _TRACES = ("message", "msg", "log", "event"), ("exc_info", "exception", "stack_trace", "traceback", "stack")
_LEVELS, _MINOR = ("level", "levelname", "severity"), ("INFO", "DEBUG", "WARNING", "WARN", "NOTICE", "TRACE")
# What launchers, log drivers and clusters put before each line. What names the rank or host tells its lines apart.
_SOURCE = LazyPattern(
    r"\s{0,8}(?:\[(?:\d+,(?:mpirank:)?)?\d+(?:,[\w.:-]+)?\]<std(?:out|err)>:"
    r"|\[(?:(?:rank|default|local_rank|node|worker|gpu|task|trainer)[ _:-]?\d+|pod/[^\]\s]{1,100}|algo-\d+)\]:?"
    r"|[\w.-]{0,60}(?:algo-|worker-?|node-?|rank-?)\d+[\w-]{0,20}\s{0,8}\||\([^()\n]{0,60}\bpid=\d+[^()\n]{0,60}\)"
    r"|\((?:rank|worker|node|trainer|task)[ _-]?\d+\) ?:|(?:worker|node|trainer)[-_]\d+: "
    r"|\d{1,4}: ) ?"
)
# CloudWatch's: the stream of a host, after the time of a line.
_STREAM = LazyPattern(
    r"(?:[\w.-]{1,80}/)?algo-\d{1,4}(?:-\d{10,13})?"
    r"(?: (?!(?:is|was|has|had|did|cannot|failed|lost|exited|reported|unreachable)\b)|$)"
)
# pdsh's: the name or address of a host, before each line of its output, and what it says of one whose command failed.
_HOST = LazyPattern(
    r"(?m)^([a-z][\w.-]{0,60}\d|\d+(?:\.\d+){3}): ?"
    r"(?=Traceback|\s+File \"|\s{4}|\[rank\d|(?:\w{1,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception): |bash: )"
    r"|^pdsh@[\w.-]{1,60}: ([\w.-]{1,60}): ssh exited"
)
# Not a device, a part of a model or a program, which are numbered too.
_NUMBERED = LazyPattern(
    r"(?m)^(?!(?:nvme|mlx|ib|eth|en[ops]|bond|sd|md|dm-|cuda|epoch|step|iter|layer|stage|block|train|python))"
    r"([a-z][\w.-]{0,60}\d|\d+(?:\.\d+){3}):(?: |$)"
)
# Where a progress bar ends that no line break separates from the next line.
_BAR_END = r"(?<=it/s\]|s/it\])(?=[^\s\]])|(?<=it/s|s/it)(?=\[rank\d)"
_STAMP = LazyPattern(
    r"\s{0,3}(?:\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
    # "Fri Sep 25 16:52:36 2020", or syslog's "Sep 25 16:52:36".
    r"|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?: \d{4})?(?=[ \[])"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,6})?\]?(?= )|std(?:err|out) [FP](?= )|\[std(?:err|out)\]:?"
    # TensorFlow reports the errors of its threads as information.
    r"|INFO:tensorflow:(?=Error (?:reported|recorded) )) ?"
)
# A frame after what a logger puts before each line, and the rank at the end of that.
_LOGGED_FRAME = LazyPattern(r"\s{2}File \"[^\"]{1,300}\", line \d+, in ")
_LOGGED_RANK = LazyPattern(r"\[(?:rank|default|local_rank|node|worker)[ _:-]?\d+\]:? ?$")
_GROUP = LazyPattern(r"\s{0,20}(?:\+[+-]{2,}[-\s\d]*$|\+ (?=Exception Group)|\|(?: |$))")

_START = LazyPattern(r"Traceback \(most recent call last\):?|\(most recent call first\):?")
_FRAME = LazyPattern(
    r"\s*File \"[^\"]*\", line \d+|.{0,200}\", line \d+, in \S+$|line \d+, in \S+$"
    # IPython's, in both of its forms.
    r"|(?:<ipython-input-\S{1,60}>|[~/\w][^\s:]{0,200}\.pyx?) in \S.{0,300}$|Cell In\[\d+\], line \d+"
    r"|File \S{1,200}:\d+, in \S|\d+ frames$"
)
_CARETS = LazyPattern(r"\s*[~^][~^\s]*$|\s*\[Previous line repeated")
_POINTED = LazyPattern(r"-{2,6}> ?\d+ ")
_CHAIN = LazyPattern(
    r"(During handling of the above exception)|The above exception was the direct cause of the following"
)
# The names of exceptions; a bare class in a flattened traceback, where indentation does not tell code from exception.
_EXCEPTION = LazyPattern(
    r"(?:[A-Za-z_]\w*\.){0,8}(?:Exception|[A-Za-z_]\w*?"
    r"(?:Error|Exception|Interrupt|Exit|Iteration|Timeout|TimedOut|Failure|Failed|Fault|Abort|Aborted|Killed|Lost|"
    r"Killer|Empty|NotFound|Group|Usage|OutOfMemory|Died|Unavailable|Refused|Truncated|NaN|Nan|Diverged|Traceback))"
    r"(?:\([\w., ]{1,80}\))?(?::(?!\s{0,2}\[?(?:INFO|DEBUG)\b)(?:\s|$)|$)"
)
_DOTTED = LazyPattern(r"(?:[A-Za-z_]\w*\.){1,8}[A-Z]\w*(?::(?!\s{0,2}\[?(?:INFO|DEBUG)\b)(?:\s|$)|$)")
_RAISED = LazyPattern(r"raise ((?:\w+\.){0,5}[A-Z]\w*)\b")
# SageMaker's and its toolkit's words around the program's own.
_AROUND = LazyPattern(
    r"(?:Command|Cmd) \"[^\"]{0,2000}\"?"
    r"|\b(?:[\w.]{1,80}: )?Error (?:for|training)\b[^:]{0,200}: (?:Failed\.? )?Reason: "
    r"|\b(?:AlgorithmError|ExecuteUserScriptError|framework error|uncaught exception during training):[ \t:]{0,4}"
    r"|\bExitCode \d+\b|\bErrorMessage \"{1,3}"
    # The operation of TensorFlow's graph.
    r"|[ \t]\[\[(?:\{\{)?[Nn]ode\b.{0,2000}"
)

# Exceptions that only report that another process, task or call has failed.
_WRAPPERS = LazyPattern(
    r"(?:\w+\.)*(?:ChildFailedError|CalledProcessError|ExecuteUserScriptError|AlgorithmError|ProcessRaisedException"
    r"|ProcessExitedException|_?RemoteTraceback|RayTaskError(?!\((?!Runtime|OS|Exc)\w)|TrainingFailedError|TuneError"
    r"|SystemExit|(?:Base)?ExceptionGroup|UnexpectedStatusException|InstantiationException|ActorDiedError|RayActorError"
    r"|RetryError|SignalException|FatalError: .{1,80} is detected by the operating system)\b"
    r"|RuntimeError: DataLoader worker \(pid.{0,60}exited unexpectedly"
    r"|[\w.]{1,80}(?:Error|Exception): .{0,80}\bSee (?:root cause|stack ?trace) \(?above"
)
# Exceptions of the program whatever the words of their message, which are names and values of the program.
OF_PROGRAM = LazyPattern(
    r"(?:KeyError|AttributeError|NameError|UnboundLocalError|TypeError|IndexError|ImportError|ModuleNotFoundError"
    r"|SyntaxError|IndentationError|TabError|NotImplementedError|ZeroDivisionError|RecursionError)\b"
)

# What a process raises again for its worker, whose own traceback follows.
_CAUGHT = LazyPattern(r"[\w.]{1,80}: Caught \w+ in (?:DataLoader worker process|pin memory thread|replica) .{0,40}$")
# An exception that several processes print at once: "NameErrorNameError: : ".
_DOUBLED = LazyPattern(r"\b([A-Z]\w{0,60}?(?:Error|Exception|Interrupt))\1+: (?:: ?)+")
_ANNOUNCED = LazyPattern(r"Error: \S.{0,200}:$")
# What a handler raises that expects another type of exception than the one it got.
_OF_HANDLER = LazyPattern(r"\w+Error: '\w+(?:Error|Exception|Timeout)' object (?:has no attribute|is not)\b")

# Lines that a kernel, a runtime or a launcher prints when something fails.
_FAULT = LazyPattern(
    r"NVRM|\bXid\b|\bkernel:|slurmstepd: error|srun: error|\boom[-_ ]?kill|Out of memory: Kill|^\s{0,4}Killed\b"
    r"|\bBus error|Segmentation fault|core dumped|terminate called|^\s{0,4}what\(\):|\[[EF][ \d]|^[EF]\d{4} |NCCL WARN"
    r"|\b(?:FATAL|Fatal|CRITICAL|ERROR|FAIL)\b|panicked at|^Caused by:|Exception in thread|uncorrectable|\bECC_"
    r"|No space left|\(SIG[A-Z]{2,6}\)|off the bus|Watchdog caught|(?:terminated|failed) with exception"
    r"|^\s{0,4}(?:[Ee]rror|fatal|E|E[A-Z]\d{4}): "
)
# What the kernel, the driver or the error log of a library prints.
DEVICE = LazyPattern(
    r"NVRM|\bXid\b|\bkernel:|\[[EF][ \d]|^[EF]\d{4} |terminate called|^\s{0,4}what\(\):|NCCL WARN|\bERROR\b"
)

_LEVEL = LazyPattern(
    r"^.{0,60}?(?<!NCCL )(?<![\w./-])(?:INFO|DEBUG|WARNING|WARN|NOTICE|TRACE)(?=[\s:\]|-])"
    r"|^\s{0,4}\[?[WI](?:\d{4}|[ \d]{1,3}\w{0,9}[ \d:.]{0,30}\S{1,60}:\d+\])|(?<=\w)Warning\b"
    r"|(?:^|[\d\]] )NCCL INFO|warnings\.warn"
)
_LOWER_LEVEL = LazyPattern(
    r"^\s{0,4}(?:(?:\[?(?:warning|info|debug|note|hint|tip)\]?\s{0,2}|rerail init):"
    # SageMaker's states, as its SDK prints them.
    r"|(?:starting|downloading|training|uploading) - (?:start|launch|prepar|download|training image|upload))",
    re.IGNORECASE,
)
_PROGRESS = LazyPattern(r"\d{1,3}%\s?[|\[]|\d(?:it|s|ex|batch|step|tok\w*|samples?)/(?:it|s|step)\b|\[\d\d:\d\d<")
_LITERAL = (
    r"(?:[-+]?[\d.][\d.eE_+-]*\w{0,3}|true|false|none|null|nan|inf|on|off|yes|no|enabled|disabled|\[.*|\{.*|\".*\"|'.*'"
    r"|[\w./-]+)"
)
_SETTING = LazyPattern(
    rf"\s*(?:export |set |env |- |--|\+)?[\"']?[A-Za-z_][\w.\-/]*[\"']?\s?=\s?\S.*$"
    r"|\s*[{,]?\s*[\"'][\w.\-/ ]{1,60}[\"']\s*:\s*.*$"
    rf"|\s*[a-z]+[_\-.][\w.\-]*\s*:\s*{_LITERAL}\s*,?$"
    # An error code of gRPC or CUDA before a sentence looks like a setting.
    r"|(?!\s*(?-i:\w+_(?:EXHAUSTED|EXCEEDED|DENIED|PRECONDITION|ARGUMENT|LOSS))\b)\s*[A-Z]+_[A-Z0-9_]+\s*:\s*\S.*$"
    rf"|\s*[a-z]\w*\s*:\s*(?:[-+]?[\d.][\d.eE_+-]*|true|false|none|null|nan|inf),?$"
    r"|\s*[\w.\-]+ ?\.{4,}.*$|\s*\|\s*[\w.\-]+\s*\|.*\|$"
    r"|.{0,40}\b(?:Namespace|\w{0,40}(?:Config|Arguments|Args|Settings|Params)\w{0,20})\s?\(.*=.*"
    r"|.{0,60}?(?:[\w.]+=[^\s,;]+[\s,;]+){3,}.*$",
    re.IGNORECASE,
)
_METRIC = LazyPattern(
    r"\{'(?:loss|grad_norm|epoch|eval_\w+|train_\w+)':|^\s*(?:\S+ ){0,3}(?:step|iter\w*|epoch)s?[ :=\[(]+\d"
)
_INTENT = LazyPattern(
    r"^\s{0,4}(?:setting|using|enabling|disabling|enabled|disabled|configured|watching for|checking (?:for|whether)"
    r"|registered|installing|will|(?:if|when)(?! I )|starting|resuming|loading|loaded)\b(?!.{0,60}\b(?:fail|error)\w*)",
    re.IGNORECASE,
)
_NATIVE_FRAME = LazyPattern(
    r"\s*(?:frame )?#\d+:? (?!ERROR)|\s*at (?:\S{1,200}\(\S{0,200}\)|/|[\w./]+:\d+)|\s*\d+:\s+0x|\s*\d+: \w+(?:::\w+)+"
    r"|\[\S+:\d+\] \[ ?\d+\]|\s*C\+\+ CapturedTraceback"
    r"|\s*\S{1,200}\(\S{0,200}\+0x[0-9a-f]+\)|\s*\.\.\. \d+ more$|Exception raised from \S+ at|\s*stack backtrace:"
)

# Frames and source lines that read a checkpoint, and those that read the input. Both may call `torch.load`.
_LOADS_CHECKPOINT = LazyPattern(
    r"\btorch\.load\(|load_state_dict|from_pretrained|load_checkpoint|checkpoint|\bckpt|\bresume|\brestore|safetensors"
    r"|\bload_model\b|\bload_weights\b|\bsafe_open\b|torch/serialization\.py",
    re.IGNORECASE,
)
_READS_INPUT = LazyPattern(
    r"__getitem__|data_?loader|_utils/fetch\.py|_utils/worker\.py|data_?sets?\b|read_(?:sample|record|shard|parquet)"
    r"|/opt/ml/input/|load_(?:data|samples|features|shard|image)|collate|tokeniz|\bloads\(line\b",
    re.IGNORECASE,
)
# Calls and assignments that read the settings of the program, next to where the exception was raised.
_READS_SETTINGS = LazyPattern(
    r"\b(?:config\w*|cfg|conf|settings|hparams|hyper_?param\w*|\w{0,40}_dict|params|args) ?= ?[\w.]{0,40}"
    r"(?:load|decode|parse)\w{0,40}\(|load\w{0,20}\((?:open\()?\w{0,40}(?:config|cfg|settings|param|args|yaml)"
    r"|(?:load|read|parse|get|from)_(?:config|cfg|settings|hparams|yaml)|deepspeed_?config|config_file",
    re.IGNORECASE,
)
# A line that announces the loading of a checkpoint, and one that shows that it is over.
_ANNOUNCES = LazyPattern(
    r"\b(?:load|restor|resum)(?:e|ing)?(?![a-z])(?!.{0,80}\b(?:success|done|complete)).{0,60}?(?:checkpoint|ckpt"
    r"|snapshot|weights|model from)|torch/serialization\.py",
    re.IGNORECASE,
)
_IS_LOADED = LazyPattern(r"\b(?:loaded|restored|resumed)\b|\bsuccess", re.IGNORECASE)
# An error inside the JSON of torchelastic's error file, or of a logger that writes an object a line.
_IN_JSON = LazyPattern(
    r"\s*(?:\{.{0,300}?)?\"(?:message|msg|log)\"\s?:\s?\"([A-Z]\w{0,60}(?:Error|Exception)\b.{0,400}?)(?:\"[,}].{0,300}|\"?,?)$"
)
# The lines of a collective's timeout.
WAVE = LazyPattern(
    r"Watchdog caught|operations have failed or timed out|Timeout at NCCL work|timed out in blocking wait"
    r"|detected by watchdog|collective (?:operation )?timeout|WorkNCCL\(|NCCL watchdog hang|Timed out waiting \d+ms for"
)
# The end of a process, whose errors follow from what ended it.
_CLOSING = LazyPattern(
    r"_run_finalizers|_run_exitfuncs|\batexit\b|\b__del__\b|\bException ignored (?:in|on)\b|_remove_temp_dir"
)
# A line that a program may print as it starts.
_BANNER = LazyPattern(r"(?!Traceback|\[rank|\d+: )[A-Za-z+#=>*-][^|%]{0,60}[A-Za-z]{3}[^|%]*$")
# An exception that aborts a process, and the signal with which the process then ends.
_ABORTS = LazyPattern(r"terminate called (?:after|without|recursively|\.\.\.)|taking the entire process down")
_SIGNAL = LazyPattern(r"\bCaught signal \d+|\*{3} (?:SIG|Process received signal)|\] Signal: |\bFatal Python error: ")
# What a launcher prints once, as it starts the program: torchrun, SageMaker's toolkit, DeepSpeed.
_LAUNCH = LazyPattern(
    r"OMP_NUM_THREADS environment variable for each process|\bInvoking (?:user )?(?:training )?script\b"
    r"|\[(?:runner|launch)\.py:\d+:main\] (?:cmd|nnodes|dist_world_size)|\bwill restart worker group"
)
# Lines about something else, whatever their place.
IRRELEVANT = LazyPattern(
    r"(?:^|[\d\]] )NCCL INFO|\[W[ :].{0,80}errno: 97|(?:User|Future|Deprecation|Runtime)Warning|OMP_NUM_THREADS"
    r"|Sending process \d+ closing signal|leaked semaphore|\b[Rr]etrying in\b|will retry|Attempted loss scale"
    r"|[Gg]radient overflow\. Skipping|Failed to open lib(?:ibverbs|mlx5)"
    # The launcher's record of a process without an error of its own.
    r"|torchelastic\.worker\.status\..{0,600}<NONE>"
    # What libraries and SageMaker's toolkit print at the end of a process.
    r"|destroy_process_group\(\) was not called|^wandb: (?:Synced|Find|View|Waiting|Run |wandb version)"
    r"|sagemaker-training-toolkit INFO|Reporting training FAILURE|Primary job +terminated normally|^-{20,}$"
    r"|a non-zero exit code\. Per user-direction|mpirun\S{0,60} detected that one|the job to be terminated\. The first"
)
# Progress after an error: training survived it.
MIN_PROGRESS = 3
# What names the rank of a line: prefixes of torchrun, mpirun, Horovod, srun and Composer, and the words of libraries.
_RANK = LazyPattern(
    r"\[rank[ _:-]?(\d{1,6})\]|\[(?:\d+,)?(?:mpirank:)?(\d{1,6})(?:,[\w.:-]+)?\]<std|^\s{0,3}\[(\d{1,6})\]: ?(?=\S)"
    r"|^\s?(\d{1,5}): (?!\[rank)|\brank(\d{1,6})\[\d+\]|\[(?:PG [^\]]{1,80} )?Rank (\d{1,6})\]"
    r"|\brank[ =](\d{1,6})(?:: found\b|, node\b| at iter|\])"
    r"|/task:(\d{1,6})\b(?!/device)|\btrainer(\d{1,6})\|\d"
    r"|\btask (\d{1,6}): (?:Out Of M|Killed|Bus error|Segmentation|Aborted)",
    re.IGNORECASE,
)
# What launchers and libraries print about the first rank that failed: torchrun's table, with its time, and others.
_ROOT_CAUSE = LazyPattern(
    r"(?s)Root Cause \(first observed failure\):(?:.{0,99}?\btime {1,8}: (\S{8,40}))?.{0,600}?\brank {1,8}: (\d{1,6})\b"
)
_LAUNCHER_RANK = LazyPattern(
    r"\bprocess rank (\d{1,6}) with PID|waiting for send/recv from rank (\d{1,6})\b"
    r"|\bContainer rank (\d{1,6}) status failed|\brank (\d{1,6}) died from signal"  # Paddle, PALS
    r"|\btask (\d{1,6}): (?:Out Of M|Killed|Bus e|Segmentation|Exited with)|\bMPI_ABORT was invoked on rank (\d{1,6})\b"
    r"|\brank (\d{1,6})(?: \(PID \d{1,9}\))? (?:crashed|exit(?:ed)?) with"
    r"|\bprocess (\d{1,6}) terminated with (?:signal|exit|the following)"
    r"|\bProcess name: (?:\[\[\d+,\d+\],(\d{1,6})\]|\[\S{1,80}@\d+,(\d{1,6})\]|(\d{1,6})\s*$)"
    r"|\[rank: (\d{1,6})\] Child process with PID|\btrainer process with rank=\[(\d{1,6})\] was aborted",
    re.IGNORECASE | re.MULTILINE,
)
# srun and Paddle name each rank that ended by itself, "3" or "0-7,9": of several, none is known to be the first.
_EXITED = LazyPattern(r"\btasks? ([\d,-]{1,200}): Exited with|\bContainer rank (\d{1,6}) status failed")
_ENDED = LazyPattern(r"\btasks? ([\d,-]{1,200}): (?:Out Of M|Killed|Bus e|Segm)")
# The rank that speaks in a line; behind the prefix of another one, the line quotes it. Not its number within a group.
_SPEAKER = LazyPattern(r"\[Rank (\d{1,6})\]")
# torchrun's number on its host of the process that failed first: the rank, where there is one host.
LOCAL_RANK = LazyPattern(r"\bfailed \(exitcode: -?\d{1,3}\).{0,300}?\blocal_rank: (\d{1,4})\b")
# The ranks that the others wait for: Horovod's tensors and stalled ranks, Gloo's barrier.
_MISSING = LazyPattern(
    r"\[missing ranks: ([\d, ]{1,400})\]|\bRanks? ([\d, ]{1,400}) failed to pass monitoredBarrier"
    r"|^(?:\[1,\d{1,6}\]<std(?:out|err)>:)?(\d{1,6}): \[(?=[^\]\s]{0,200}(?:orovod|llreduce|llgather|roadcast))",
    re.MULTILINE,
)
# The lines of a rank that waits for another one or has lost it.
_LOST = LazyPattern(
    r"\bsetting up NCCL communicator|\bapplication crash on rank|remote process exited|[\"']should dump[\"'] flag"
    r"|\bwaiting for clients\b|\b(?:recvValue|sendBytes) failed|submitted to be reduced|tasks are unhealthy"
    r"|Received a dump signal due to a .{0,40}? from {1,2}rank|Observed flight recorder dump signal"
    r"|Remote Rank did not send|Horovod has been shut"
)
_SPAWNED = LazyPattern(r"-- Process (\d{1,6}) terminated with the following error")
# What SageMaker's toolkit and launchers print after a script has ended, whatever its result.
_AFTER_END = LazyPattern(
    r"Reporting training SUCCESS|finish and give a return code|return code\. Received|^[-=]+$"
    r"|^\[\d+\]:$|^(time|host|rank|exitcode|traceback) +: |^error_file: |^Failures:|^Root Cause|NO_OTHER_FAILURES"
    r"|^\S+ FAILED$"
)
FINAL_LINES, FINAL_CHARS = 80, 24_000
# As programs and Python print it; other words around it do not say that something has failed.
_FULL_DISK = LazyPattern(
    r"^\S{1,80}: (?:.{0,300}\W)?No space left on device"
    r"(?: ?\((?:os error )?\d+\)|: ?'[^']{0,300}'(?: -> '[^']{0,300}')?)?\.?$"
)
# A logger's line before a traceback: the script has handled the error. Launchers print theirs with an exit code.
_HANDLED = LazyPattern(r"^(?!.*\bexitcode\b).{0,80}?(?<![\w./-])(?:ERROR|EXCEPTION|CRITICAL)(?=[\s:\]|-])")


@dataclass(slots=True)
class _Block:
    """An exception with its message."""

    lines: list[str] = field(default_factory=list)
    # It replaced the block before it: "During handling of ...", "... was the direct cause of ...".
    is_chained: bool = False
    # The frames and their source lines.
    frames: str = ""
    # The lines of progress before it.
    progress: int = 0
    is_announced: bool = False

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.lines).split())

    @property
    def is_consequence(self) -> bool:
        """Return whether it came after the root: at the end of the process or of a `with` block, or in a handler."""
        is_exit = self.frames.rpartition(", in ")[2].startswith("__exit__")
        is_of_exit = self.is_chained and (is_exit or _OF_HANDLER.match(self.text) is not None)
        return is_of_exit or _CLOSING.search(self.frames) is not None


@dataclass(slots=True)
class FailureLines:
    """The lines of a text by what they say about the failure."""

    # The final exception of each traceback, with its message on the same line.
    exceptions: list[str] = field(default_factory=list)
    # Exceptions that another one replaced.
    replaced: list[str] = field(default_factory=list)
    # Lines outside tracebacks that begin like an exception, or that a kernel, runtime or launcher printed.
    errors: list[str] = field(default_factory=list)
    # Other lines, without code, settings, progress and warnings.
    others: list[str] = field(default_factory=list)
    # Settings, progress and warnings.
    noise: list[str] = field(default_factory=list)
    # Exceptions that training survived: others came after more steps.
    survived: list[str] = field(default_factory=list)
    # Exceptions whose traceback, or the line before it, shows that a checkpoint, the input or settings were being read.
    loading: set[str] = field(default_factory=set)
    reading: set[str] = field(default_factory=set)
    settings: set[str] = field(default_factory=set)
    # The text ends inside a traceback, before its exception.
    is_cut: bool = False
    # The type that the last source line raises, where the traceback is cut off.
    raised: str = ""

    @property
    def is_loading(self) -> bool:
        """Return whether any traceback shows the loading of a checkpoint and none that of the input."""
        return bool(self.loading) and not self.reading


def is_wrapper(line: str) -> bool:
    """Return whether the exception only reports that something else has failed."""
    return _WRAPPERS.match(line) is not None


def is_exception(line: str) -> bool:
    """Return whether the line begins with the name of an exception."""
    return (_EXCEPTION.match(line) or _DOTTED.match(line)) is not None


def find_rank(
    texts: Sequence[str], root: str, *, is_wave: bool = False, is_own: Callable[[str], bool] = lambda exception: False
) -> int | None:
    """Return the only rank that printed the root error, or else the one that the launcher names.

    In a wave, where ranks wait for each other, the only one that is missing or, where none is, that printed it. Ranks
    that fail on their own print in any order: only the launcher knows which was the first.
    """
    joined = "\n".join(texts)
    if is_wave and (missing := set(re.findall(r"\d+", " ".join(map(_join_groups, _MISSING.finditer(joined)))))):
        return int(missing.pop()) if len(missing) == 1 else None
    lines = re.split(r"[\r\n]+", joined)
    lost = {_join_groups(_RANK.search(line)) for line in lines if is_wave and _LOST.search(line)}
    ranks = [rank for text in texts for rank in _list_ranks(text, _make_key(root)[:30], is_wave=is_wave)]
    ranks = [rank for rank in ranks if rank not in lost]
    # Of several tables of torchrun, the one with the earliest time; or else the only rank with a traceback that is cut.
    tables = _ROOT_CAUSE.findall(joined)
    failing = set() if is_wave else set(_list_failing(lines, is_own))
    is_only = bool(ranks) and len({*ranks, *failing}) == 1
    if (is_only or ranks and is_wave) and (len(tables) < 2 or ranks[0] in [rank for _, rank in tables]):
        # What the launcher's first rank printed may be missing from the text.
        is_known = len(tables) != 1 or tables[0][1] in {_join_groups(_RANK.search(line)) for line in lines}
        return int(ranks[0]) if is_only and (is_known or tables[0][1] == ranks[0]) else None
    launched = _LAUNCHER_RANK.search(joined)
    alike = next((kind for kind in (_EXITED, _ENDED) if launched and kind.match(launched[0])), None)
    first = {rank for time, rank in tables if time == min(tables)[0]}
    first = first or set(map(_join_groups, alike.finditer(joined) if alike else ()))
    named = _join_groups(launched) if not first else first.pop() if len(first) == 1 else ""
    if named and not ranks and root and _is_of_other_source(joined, _make_key(root)[:30], named):
        return None
    if not named and not first and not ranks and not is_wave and not _LOST.search(joined):
        framed = {rank for line in lines if '", line ' in line and (rank := _join_groups(_RANK.search(line)))}
        named = framed.pop() if len(framed) == 1 else ""
    return int(named) if named.isdecimal() and named not in lost else None


def _is_of_other_source(text: str, key: str, named: str) -> bool:
    """Return whether sources without a rank's number fail in different ways, and another one than the named one's."""
    printed: dict[str, bool] = {}
    host = _find_hosts(text)
    for source, body in (_strip_prefixes(line, host) for line in re.split(r"[\r\n]+", text)):
        if source and (is_exception(body) or key in _make_key(body)):
            printed[source] = printed.get(source, False) or key in _make_key(body)
    return set(printed.values()) == {True, False} and not printed.get(f"[default{named}]:")


def _list_failing(lines: Iterable[str], is_own: Callable[[str], bool]) -> Iterator[str]:
    """Yield the ranks with an exception of their own, and those whose traceback is cut off before it."""
    cut: set[str] = set()
    owned: dict[str, bool] = {}
    for line in lines:
        prefix = _RANK.search(line)
        rank, body = _join_groups(prefix), _strip_prefixes(line[prefix.start() if prefix else 0 :])[1]
        if rank and _FRAME.match(body):
            cut.add(rank)
        elif rank and body.strip() and not body[0].isspace():
            cut.discard(rank)
            if is_exception(body) and (key := _make_key(body)) not in owned:
                owned[key] = is_own(body)
            if owned.get(_make_key(body)):
                yield rank
    yield from cut


def _list_ranks(text: str, key: str, *, is_wave: bool) -> Iterator[str]:
    """Yield the rank of each line that prints the key or, in a wave, the timeout of a collective."""
    spawned = ""
    for line in re.split(r"[\r\n]+", text):
        spawned = _join_groups(_SPAWNED.search(line)) or spawned
        rank = _join_groups(_RANK.search(line)) or spawned
        is_root = (key and key in _make_key(line)) or (is_wave and WAVE.search(line))
        if rank and is_root and not _LOST.search(line):
            yield from {rank, *_SPEAKER.findall(line)}


def _join_groups(match: "re.Match[str] | None") -> str:
    return "".join(filter(None, match.groups())) if match else ""


def cut_older_launches(text: str) -> str:
    """Return the text from its last launch on: from a launcher's words, or where its first line comes again."""
    starts = [launch.end() for launch in _LAUNCH.finditer(text)]
    first = text.partition("\n")[0].rstrip()
    if _BANNER.match(first) and not is_exception(first) and not _begins_anew(first):
        again = text.rfind(f"\n{first}\n")
        # Several ranks print one line too, but not after the exception of a traceback.
        if again > 0 and find_failure_lines(text[:again]).exceptions:
            starts.append(again)
    return text[max(starts, default=0) :]


def find_final_error(log: str, *, logged: bool = True) -> str:
    """Return the error with which a log ends: the exception of a traceback, or a full disk; "" if it goes on after it.

    The message of the exception must fit on one line: further lines may be those of a script that goes on. Without
    `logged`, a traceback that a logger printed and a line that only mentions a full disk are left out: the script may
    have ended well after them.
    """
    lines = [line.rstrip() for line in log[-FINAL_CHARS:].splitlines() if line.strip()]
    while lines and _AFTER_END.search(lines[-1].strip()):
        lines.pop()
    last = " ".join(lines[-1].split()) if lines else ""
    error = next(reversed(find_failure_lines("\n".join(lines[-FINAL_LINES:])).exceptions), "")
    if error and last.endswith(error):
        starts = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
        is_logged = bool(starts and starts[-1] and _HANDLED.search(lines[starts[-1] - 1]))
        return error if logged or not is_logged else ""
    if logged:
        return last if "No space left on device" in last else ""
    is_minor = _LEVEL.search(last) or _LOWER_LEVEL.match(last)
    return last if _FULL_DISK.search(last) and not is_minor else ""


def _make_key(line: str) -> str:
    return re.sub(r"\d+", "#", " ".join(line.split()))


def read_output(text: str) -> str:
    """Return the text without colors, and with the messages of loggers that write an object of JSON on a line."""
    return _OBJECT.sub(_read_object, _CONTROL.sub("", text))


def _read_object(line: "re.Match[str]") -> str:
    try:
        item = json.loads(line[2])
    except (ValueError, RecursionError):
        return line[0]
    messages, traces = ([item[key] for key in keys if isinstance(item.get(key), str)] for keys in (_MESSAGES, _TRACES))
    if not messages or "loss" in item:
        return line[0]
    level = next((str(item[key]).upper() for key in _LEVELS if key in item), "")
    message = f"{level}: {messages[0]}" if level in _MINOR else messages[0]
    return "\n".join(line[1] + part for text in (message, *traces) for part in text.splitlines())


def find_failure_lines(text: str, *logs: str) -> FailureLines:
    """Return the lines of a text, and of the logs that complete it, by what they say about the failure."""
    found = FailureLines()
    for part in (text, *logs):
        for lines in _split_sources(_AROUND.sub("\n", part)).values():
            scan = _Scan(found)
            for line in lines:
                scan.read(line)
            scan.finish()
    return found


def _split_sources(text: str) -> dict[str, list[str]]:
    """Return the lines of each rank or host, without the prefixes; one-line tracebacks are split into lines."""
    sources: dict[str, list[str]] = {}
    host = _find_hosts(text)
    lines = [piece for line in re.split(r"\n|\\n", text) for piece in _strip_pieces(line.rstrip("\r"), host)]
    logged = _find_logger([body for _, body in lines])
    for source, body in lines:
        if logged and (prefix := logged.match(body)):
            inner, body = _strip_prefixes(body[prefix.end() :])
            source += inner
        sources.setdefault(source, []).extend(_unfold(_DOUBLED.sub(r"\1: ", body)))
    return sources


def _find_hosts(text: str) -> "re.Pattern[str] | None":
    """Return a pattern for the hosts that pdsh names before their lines, or None."""
    named = [_join_groups(name) for name in _HOST.finditer(text)]
    numbered = _NUMBERED.findall(text)
    # Hosts that print no traceback are known by their number: nearly every line begins with one of several.
    if len(set(numbered)) > 1 and len(numbered) > 2 and len(numbered) * 5 >= len(re.findall(r"(?m)^.*\S", text)) * 4:
        named += numbered
    return re.compile(rf"(?:{'|'.join(map(re.escape, sorted(set(named))))}): ?") if named else None


def _find_logger(lines: list[str]) -> "re.Pattern[str] | None":
    """Return a pattern for what loggers put before each line of a traceback: "- train - ERROR - "."""
    found: dict[str, str] = {}
    for line, following in pairwise(lines):
        start = _START.search(line) or _LOGGED_FRAME.search(line)
        before = _LOGGED_RANK.sub("", line[: start.start()]) if start else ""
        key = re.sub(r"\d+", "#", before)
        if 1 < len(before) <= 120 and re.sub(r"\d+", "#", following).startswith(key) and len(found) < MAX_LOGGERS:
            found[key] = re.escape(key).replace(r"\#", r"\d+")
    return re.compile("|".join(found.values())) if found else None


def _strip_pieces(line: str, host: "re.Pattern[str] | None") -> Iterator[tuple[str, str]]:
    """Yield the source and the rest of what bars of progress print on one line; a piece without a prefix goes on."""
    source = ""
    for piece in re.split(rf"\r|{_BAR_END}", line):
        found, body = _strip_prefixes(piece, host)
        source = found or source
        yield source, body


def _strip_prefixes(line: str, host: "re.Pattern[str] | None" = None) -> tuple[str, str]:
    source, is_stamped = "", False
    for _ in range(4):
        if stamp := _STAMP.match(line):
            line, is_stamped = line[stamp.end() :], True
        elif match := (is_stamped and _STREAM.match(line)) or _SOURCE.match(line) or (host and host.match(line)):
            source, line = source + match[0].strip(), line[match.end() :]
        else:
            break
    while match := _GROUP.match(line):
        line = line[match.end() :]
    return source, line


def _unfold(line: str) -> Iterator[str]:
    """Split a traceback that was joined into one line: only what follows its last frame's code can be the exception."""
    start = _START.search(line)
    frames = list(re.finditer(r"File \"[^\"]{1,300}\", line \d+(?:, in \S+)?", line)) if len(line) > 60 else []
    if not frames or (len(frames) == 1 and line.lstrip().startswith("File ") and not _named(line[frames[0].end() :])):
        yield line
        return
    yield line[: start.end() if start and start.start() < frames[0].start() else frames[0].start()]
    for index, frame in enumerate(frames):
        yield f"  {frame[0]}"
        end = frames[index + 1].start() if index + 1 < len(frames) else len(line)
        code = line[frame.end() : end]
        named = _named(code)
        yield f"    {code[: named.start()] if named else code}"
        if named:
            yield code[named.start() :]


def _named(code: str) -> "re.Match[str] | None":
    name = r"(?:[A-Za-z_]\w*\.){0,8}(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration)|Exception): "
    return re.search(rf"(?<=\s)(?<!except ){name}", code)


@dataclass(slots=True)
class _Scan:
    """The state of a scan over the lines of one rank or host."""

    found: FailureLines
    blocks: list[_Block] = field(default_factory=list)
    # The exception whose message may go on.
    block: _Block | None = None
    # Inside a traceback, before its exception: its frames, the last one's indentation (-1: none) and source lines.
    in_frames: bool = False
    is_chained: bool = False
    frames: list[str] = field(default_factory=list)
    indent: int = -1
    code_lines: int = 0
    code: str = ""
    # The lines of progress, and what the last lines announced: a process's end, the loading of a checkpoint.
    progress: int = 0
    is_closing: bool = False
    is_announced: bool = False
    # An exception has aborted the process: a later signal follows from that.
    is_aborted: bool = False
    # Exceptions outside tracebacks, with the progress before them.
    printed: list[tuple[str, int]] = field(default_factory=list)

    def read(self, line: str) -> None:
        """Take the line as part of a traceback, or else of an exception's message, or else by itself."""
        bare = line.strip()
        if (start := _START.search(line)) or _FRAME.match(line):
            self._open_frames(line, bare, start)
        elif _CHAIN.search(line):
            self.is_chained, self.in_frames, self.block = True, False, None
        elif self.in_frames:
            self._read_frames(line, bare)
        elif not self._continue_message(line, bare):
            self._read_printed(line, bare)

    def _open_frames(self, line: str, bare: str, start: "re.Match[str] | None") -> None:
        self.in_frames, self.code_lines, self.block = True, 0, None
        if start is None:
            self.frames.append(bare)
            self.indent = _measure_indent(line) if "line " in line else -1
            return
        if (before := line[: start.start()].strip(" :")) and is_exception(before + ":"):
            self.found.errors.append(before)
            self.found.reading |= {before} if _READS_INPUT.search("\n".join(self.frames)) else set()
        self.frames, self.indent, self.code = [], -1, ""

    def _read_frames(self, line: str, bare: str) -> None:
        """Take a line below a frame as its source code, or else as the exception."""
        if not bare or _CARETS.match(line) or _NATIVE_FRAME.match(line):
            return
        if self._is_code(line, bare):
            self.code_lines, self.code = self.code_lines + 1, bare
            self.frames.append(bare)
            return
        # A program that prints its own tracebacks may leave out the type.
        if (raised := _RAISED.match(self.code)) and not is_exception(bare) and not _begins_anew(line):
            bare = f"{raised[1]}: {bare}"
        frames = "\n".join(self.frames) + "__del__" * self.is_closing
        self.block = _Block([bare.strip('"')], self.is_chained, frames, self.progress, self.is_announced)
        self.blocks.append(self.block)
        self.frames, self.in_frames, self.is_chained, self.is_closing = [], False, False, False

    def _is_code(self, line: str, bare: str) -> bool:
        if _measure_indent(line) > (self.indent if self.indent >= 0 else 3) or _POINTED.match(line):
            return True
        return self.indent == 0 and self.code_lines == 0 and not is_exception(bare)

    def _continue_message(self, line: str, bare: str) -> bool:
        """Add the line to the message of the exception before it, and return whether it belongs there."""
        if self.block is None or bare in ('"""', "'''"):
            return self.block is not None
        # What a message announces may follow an empty line: TensorFlow's "Graph execution error:".
        if not bare and _ANNOUNCED.search(self.block.lines[-1]):
            return True
        if not bare or len(self.block.lines) >= MAX_MESSAGE_LINES or _begins_anew(line):
            self.block = None
            return False
        self.block.lines.append(bare.strip('"'))
        return True

    def _read_printed(self, line: str, bare: str) -> None:
        is_metric = _METRIC.search(line) is not None
        self.progress += is_metric or _PROGRESS.search(line) is not None
        self.is_closing = _CLOSING.search(line) is not None
        if _ANNOUNCES.search(line):
            self.is_announced = True
        elif is_metric or _IS_LOADED.search(line):
            self.is_announced = False
        self.is_aborted |= _ABORTS.search(line) is not None
        if self.is_aborted and _SIGNAL.search(line):
            self.found.noise.append(bare)
            return
        _sort_line(line, bare, self.found)
        if is_exception(bare):
            if self.is_announced:
                self.found.loading.add(bare)
            if not is_wrapper(bare):
                self.printed.append((bare, self.progress))

    def finish(self) -> None:
        """Sort the exceptions by what came after them."""
        if self.in_frames:
            raised = _RAISED.match(self.code)
            self.found.is_cut, self.found.raised = True, raised[1] if raised else ""
        ends = [at for _, at in self.printed] + [b.progress for b in self.blocks if not is_wrapper(b.text)]
        survived_before = max(ends, default=0) - MIN_PROGRESS
        for text, at in self.printed:
            if at <= survived_before and text in self.found.errors:
                self.found.errors.remove(text)
                self.found.survived.append(text)
        for block, successor in zip_longest(self.blocks, self.blocks[1:]):
            if _READS_INPUT.search(block.frames):
                self.found.reading.add(block.text)
            elif block.is_announced or _LOADS_CHECKPOINT.search(block.frames):
                self.found.loading.add(block.text)
            elif _READS_SETTINGS.search(block.frames):
                self.found.settings.add(block.text)
            self._choose_list(block, successor, survived_before).append(block.text)

    def _choose_list(self, block: _Block, successor: _Block | None, survived_before: int) -> list[str]:
        if block.is_consequence:
            return self.found.noise
        if block.progress <= survived_before:
            return self.found.survived
        is_replaced = self.in_frames and self.is_chained and not _CLOSING.search("\n".join(self.frames))
        if successor is not None:
            is_replaced = successor.is_chained and not is_wrapper(successor.text) and not successor.is_consequence
            is_replaced |= _CAUGHT.match(block.text) is not None
        return self.found.replaced if is_replaced else self.found.exceptions


def _measure_indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _begins_anew(line: str) -> bool:
    """Return whether the line does not continue an exception's message."""
    return bool(
        (is_exception(line) and not line.startswith("nccl"))
        or _LEVEL.match(line)
        or "NCCL INFO" in line
        or _LOWER_LEVEL.match(line)
        or _PROGRESS.search(line)
        or _FAULT.search(line)
        or _NATIVE_FRAME.match(line)
        or IRRELEVANT.search(line)
        or _AFTER_END.search(line.strip())
    )


def _sort_line(line: str, bare: str, found: FailureLines) -> None:
    if not bare or _CARETS.match(line) or _NATIVE_FRAME.match(line):
        return
    if IRRELEVANT.search(line) or _AFTER_END.search(bare):
        return
    bare = match[1] if (match := _IN_JSON.match(bare)) else bare
    if is_exception(bare):
        found.errors.append(bare)
    elif _LEVEL.search(line) or _LOWER_LEVEL.match(line) or _PROGRESS.search(line) or _METRIC.search(line):
        found.noise.append(bare)
    elif _FAULT.search(line):
        found.errors.append(bare)
    elif _SETTING.match(line) or _INTENT.match(line):
        found.noise.append(bare)
    else:
        found.others.append(bare)
