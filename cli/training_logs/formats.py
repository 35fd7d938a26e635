"""The lines that training frameworks print: where the loss and the step stand in them.

A row names a framework and gives one expression for each metric, with `<n>` for a number and `<i>` for a whole one.
Each finds the training line alone: not validation, not a part of the loss, and one value a line. Sources of the lines
are in `tests/cli/training_logs/lines.json`.
"""

from typing import NamedTuple


class LogFormat(NamedTuple):
    """How one framework prints its progress; an empty expression: it does not print that."""

    name: str
    loss: str
    step: str = ""
    # Where the steps begin again with each epoch: the epoch.
    epoch: str = ""
    grad_norm: str = ""
    tokens_per_s: str = ""
    step_time_s: str = ""
    step_time_ms: str = ""
    nonfinite: str = ""
    note: str = ""


# A progress bar of tqdm; <total> is that of training, where a log has shown it.
BAR = r"%\|[^|]*\| *<i>/<total> \["
_EPOCH_BAR = r"Epoch [0-9]+: .*\| *<i>/[0-9?]+ \["
_QUOTE = "['\"]"
# In the line's own mapping, not in one within it.
_TRAINER_LOSS = rf"(?:^[^{{]*\{{|, ){_QUOTE}loss{_QUOTE}: {_QUOTE}?<n>"
_COLOUR = r"(?:\x1b\[[0-9;]*m)*"
_POLICY_GRADIENT = "the loss of a policy gradient stays near zero in a healthy run: only NaN and the speed mean much"

FORMATS = (
    LogFormat(
        "Rerail's metric line",
        r"\brerail (?:[a-z_]+=\S* )*loss=<n>",
        r"\brerail (?:[a-z_]+=\S* )*step=<i>",
        grad_norm=r"\brerail (?:[a-z_]+=\S* )*grad_norm=<n>",
        tokens_per_s=r"\brerail (?:[a-z_]+=\S* )*tokens_per_s=<n>",
        nonfinite=r"\brerail (?:[a-z_]+=\S* )*nonfinite=<i>",
    ),
    LogFormat(
        "Megatron-LM",
        r"\| lm[ _]loss: <n>",
        r"iteration +<i>/ *[0-9]+ \|",
        grad_norm=r"\| grad norm: <n>",
        step_time_ms=r"elapsed time per iteration \(ms\): <n>",
        step_time_s=r"elapsed time per iteration \(s\): <n>",
        nonfinite=r"number of nan iterations: +<i>",
    ),
    LogFormat(
        "NeMo 2",
        r"Training epoch [0-9]+, iteration .*\| reduced_train_loss: <n>",
        r"Training epoch [0-9]+, iteration .*\| global_step: <i>",
        step_time_s=r"\| train_step_timing in s: <n>",
    ),
    LogFormat(
        "NeMo 2",
        r"Training epoch [0-9]+, iteration .*\| reduced_train_loss: <n>",
        r"Training epoch [0-9]+, iteration <i>/",
        epoch=r"Training epoch <i>, iteration",
        step_time_s=r"\| train_step_timing in s: <n>",
    ),
    LogFormat("NeMo 1", r"[ ,\[]reduced_train_loss=<n>", _EPOCH_BAR, epoch=r"Epoch <i>: "),
    LogFormat(
        "torchtitan",
        rf"(?:^|- |m)step: +[0-9]+ +{_COLOUR}loss: +<n>",
        rf"(?:^|- |m)step: +<i> +{_COLOUR}loss: ",
        grad_norm=r"(?:^|- |m)step: +[0-9]+ .*grad_norm: +<n>",
        tokens_per_s=r"(?:^|- |m)step: +[0-9]+ .*(?:tps|wps): +<n>",
    ),
    LogFormat(
        "Hugging Face Trainer, trl, axolotl, Unsloth",
        _TRAINER_LOSS,
        rf"{_QUOTE}(?:global_)?step{_QUOTE}: {_QUOTE}?<i>",
        grad_norm=rf"{_QUOTE}grad_norm{_QUOTE}: {_QUOTE}?<n>",
    ),
    LogFormat(
        "ms-swift",
        _TRAINER_LOSS,
        rf"{_QUOTE}loss{_QUOTE}: .*{_QUOTE}global_step/max_steps{_QUOTE}: {_QUOTE}<i>/",
        grad_norm=rf"{_QUOTE}grad_norm{_QUOTE}: {_QUOTE}?<n>",
    ),
    LogFormat(
        "Hugging Face Trainer, trl, axolotl, Unsloth",
        _TRAINER_LOSS,
        BAR,
        grad_norm=rf"{_QUOTE}grad_norm{_QUOTE}: {_QUOTE}?<n>",
        note="the step is that of the progress bar: keep `disable_tqdm` off, and propose again for another total",
    ),
    LogFormat(
        "PaddleNLP",
        r"- loss: <n>, learning_rate: ",
        r"- loss: .* global_step: <i>,",
        step_time_s=r"interval_runtime: <n>",
    ),
    LogFormat(
        "Paddle", r"batch: \[[0-9]+/[0-9]+\], loss: <n>", r"batch: \[<i>/[0-9]+\], loss: ", epoch=r"epoch: \[<i>/"
    ),
    LogFormat(
        "DeepSpeed pipeline", r"steps: [0-9]+ loss: <n>", r"steps: <i> loss: ", step_time_s=r"iter time \(s\): <n>"
    ),
    LogFormat("verl, SFT", r" - train/loss:<n>", r"\bstep:<i> - "),
    LogFormat(
        "verl",
        r" - actor/pg_loss:<n>",
        r"\bstep:<i> - ",
        grad_norm=r" - actor/grad_norm:<n>",
        step_time_s=r" - (?:timing_s/step|perf/time_per_step):<n>",
        note=_POLICY_GRADIENT,
    ),
    LogFormat("OpenRLHF, SFT", r"[ ,\[]gpt_loss=<n>", BAR),
    LogFormat("OpenRLHF", r"Global step [0-9]+: .*'policy_loss': <n>", r"Global step <i>: ", note=_POLICY_GRADIENT),
    LogFormat("nanoGPT", r"iter [0-9]+: loss <n>", r"iter <i>: loss ", step_time_ms=r"iter [0-9]+: loss .*time <n>ms"),
    LogFormat(
        "build-nanogpt",
        r"step +[0-9]+ \| loss: +<n> \|.* dt: ",
        r"step +<i> \| loss: .* dt: ",
        grad_norm=r"\| norm: +<n>",
        tokens_per_s=r"\| tok/sec: +<n>",
        step_time_ms=r"\| dt: +<n>ms",
    ),
    LogFormat(
        "Composer, LLM Foundry",
        r"Train loss/train/total: <n>",
        r"\[batch=<i>/",
        grad_norm=r"Train l2_norm/grad/global: <n>",
    ),
    LogFormat("Composer, LLM Foundry", r"Train loss/train/total: <n>", r"\[batch=<i>/", epoch=r"\[epoch=<i>[/\]]"),
    LogFormat(
        "fairseq, metaseq",
        r"train_inner.*[ \"]loss(?:=|\": \"?)<n>",
        r"train_inner.*[ \"]num_updates(?:=|\": \"?)<i>",
        grad_norm=r"train_inner.*[ \"]gnorm(?:=|\": \"?)<n>",
    ),
    LogFormat(
        "OpenNMT-py", r"Step [0-9]+/ *[0-9]+; .*xent: +<n>", r"Step <i>/ *[0-9]+; ", tokens_per_s=r"[0-9]/ *<n> tok/s"
    ),
    LogFormat(
        "Keras",
        r" - loss: <n>",
        r"^[ \r]*(?:\x1b\[[0-9;]*[mK])*<i>/[0-9]+ ",
        epoch=r"^Epoch <i>/[0-9]+",
        # Keras rounds to whole numbers: of one digit, a little slower would look like twice as slow.
        step_time_s=r" (?=[0-9]{2})<n>s/step",
        step_time_ms=r" (?=[0-9]{2})<n>ms/step",
    ),
    LogFormat(
        "SageMaker's own algorithms",
        r"#quality_.*, batch=[0-9]+ train .*<loss>=<n>",
        r"#quality_.*, batch=<i> train ",
        epoch=r"#quality_.*, epoch=<i>, batch=",
    ),
    LogFormat(
        "SageMaker's own algorithms", r"#quality_.*epoch=[0-9]+, train .*<loss>=<n>", r"#quality_.*epoch=<i>, train "
    ),
    LogFormat("Deeplearning4j", r"Score at iteration [0-9]+ is <n>", r"Score at iteration <i> is "),
    LogFormat("Caffe", r"\] Iteration [0-9]+(?: \(.*\))?, loss = <n>", r"\] Iteration <i>(?: \(.*\))?, loss = "),
    LogFormat(
        "ultralytics",
        r"(?:^|[^0-9/.])[0-9]+/[0-9]+ +[0-9.]+[GM]B? +<n> ",
        r"(?:^|[^0-9/.])<i>/[0-9]+ +[0-9.]+[GM]B? ",
        note="the loss is the first of several, box_loss; the steps are epochs",
    ),
    LogFormat(
        "mmengine",
        r"Iter\(train\) .* loss: <n>",
        r"Iter\(train\) +\[ *<i>/",
        grad_norm=r"\(train\) .* grad_norm: <n>",
        step_time_s=r"\(train\) .* time: <n>",
    ),
    LogFormat(
        "mmengine",
        r"Epoch\(train\) .* loss: <n>",
        r"Epoch\(train\) +\[[0-9]+\]\[ *<i>/",
        epoch=r"Epoch\(train\) +\[<i>\]",
        grad_norm=r"\(train\) .* grad_norm: <n>",
        step_time_s=r"\(train\) .*  time: <n>",
    ),
    LogFormat(
        "mmcv 1",
        r"Iter \[ *[0-9]+/.*[ \t,]loss: <n>",
        r"Iter \[ *<i>/",
        grad_norm=r"Iter \[.*grad_norm: <n>",
        step_time_s=r"Iter \[.*, time: <n>",
    ),
    LogFormat(
        "mmcv 1",
        r"Epoch \[[0-9]+\]\[ *[0-9]+/.*[ \t,]loss: <n>",
        r"Epoch \[[0-9]+\]\[ *<i>/",
        epoch=r"Epoch \[<i>\]\[",
        grad_norm=r"Epoch \[.*grad_norm: <n>",
        step_time_s=r"Epoch \[.*, time: <n>",
    ),
    LogFormat(
        "MLX", r"Iter [0-9]+: Train loss <n>", r"Iter <i>: Train loss ", tokens_per_s=r"Train loss .*Tokens/sec <n>"
    ),
    LogFormat("torchtune", r"[0-9]\|[0-9]+\|Loss: <n>", r"[0-9]\|<i>\|Loss: "),
    LogFormat("LitGPT", r"iter [0-9]+ step [0-9]+ \| loss train: <n>", r"iter [0-9]+ step <i> \| loss train: "),
    LogFormat(
        "OLMo",
        r"train/(?:CrossEntropyLoss|CE loss)=<n>",
        r"\[step=<i>[/,]",
        grad_norm=r"optim/total[_ ]grad[_ ]norm=<n>",
    ),
    LogFormat("nanotron", r"iteration: .*\| lm_loss: <n>", r"iteration: <i> / "),
    LogFormat(
        "MaxText",
        r"completed step: [0-9]+, .*[ ,]loss: <n>",
        r"completed step: <i>, ",
        step_time_s=r"completed step: [0-9]+, seconds: <n>",
    ),
    LogFormat(
        "torchvision, DETR, MAE",
        r"Epoch: \[[0-9]+\] +\[ *[0-9]+/[0-9]+\] .* loss: <n>",
        r"Epoch: \[[0-9]+\] +\[ *<i>/",
        epoch=r"Epoch: \[<i>\] +\[",
        step_time_s=r"Epoch: \[[0-9]+\] +\[.* time: <n>",
    ),
    LogFormat(
        "PyTorch's imagenet example",
        r"Epoch: \[[0-9]+(?:/[0-9]+)?\]\[ *[0-9]+/[0-9]+\].*Loss:? +<n>",
        r"Epoch: \[[0-9]+(?:/[0-9]+)?\]\[ *<i>/",
        epoch=r"Epoch: \[<i>(?:/[0-9]+)?\]\[",
        step_time_s=r"Epoch: \[[0-9]+(?:/[0-9]+)?\]\[ *[0-9]+/[0-9]+\][ \t]+Time:?[ \t]+<n>",
    ),
    LogFormat(
        "PyTorch's mnist example",
        r"Train Epoch: [0-9]+ \[[0-9]+/.*Loss: +<n>",
        r"Train Epoch: [0-9]+ \[<i>/",
        epoch=r"Train Epoch: <i> \[",
    ),
    LogFormat("timm", r"Train: [0-9]+ \[ *[0-9]+/.*Loss: +<n>", r"Train: [0-9]+ \[ *<i>/", epoch=r"Train: <i> \["),
    LogFormat(
        "Swin",
        r"Train: \[[0-9]+/[0-9]+\]\[[0-9]+/.*[ \t]loss <n>",
        r"Train: \[[0-9]+/[0-9]+\]\[<i>/",
        epoch=r"Train: \[<i>/[0-9]+\]\[",
        step_time_s=r"Train: \[[0-9]+/[0-9]+\]\[.*[ \t]time <n>",
    ),
    LogFormat(
        "detectron2", r" iter: [0-9]+ .*total_loss: <n>", r" iter: <i> .*total_loss: ", step_time_s=r" time: <n>"
    ),
    LogFormat(
        "tf_cnn_benchmarks",
        r"images/sec: .*\(jitter = [0-9.]+\)[ \t]+<n>",
        r"(?:^|[^0-9.])<i>[ \t]+images/sec: ",
        tokens_per_s=r"images/sec: <n> ",
    ),
    LogFormat("TensorFlow estimator", r"tensorflow:loss = <n>", r"tensorflow:loss = .*step = <i>"),
    LogFormat(
        "Keras, custom loop",
        r"[Tt]raining loss (?:\(for one batch\) )?at step [0-9]+: <n>",
        r"[Tt]raining loss (?:\(for one batch\) )?at step <i>: ",
    ),
    LogFormat("diffusers", r"[ ,\[](?:step_)?loss=<n>", r"Steps: .*\| *<i>/<total> \["),
    LogFormat(
        "Lightning", r"Epoch [0-9]+: .*\|.*[ ,\[](?:train[_/])?loss(?:_step)?=<n>", _EPOCH_BAR, epoch=r"Epoch <i>: "
    ),
    LogFormat("BasicSR", r" l_(?:g_)?pix: <n>", r"\[epoch: .*, iter: *<i>, lr"),
    LogFormat("kohya", r"[ ,\[]avr_loss=<n>", BAR),
)
