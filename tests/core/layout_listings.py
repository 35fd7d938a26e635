"""What frameworks write into a checkpoint folder, by the source that writes it: `test_layouts.py` reads it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one checkpoint, by names with `{n}` for its number, and those that a kill leaves of the newest."""

    layout: str
    # The repository and file that write it.
    source: str
    files: tuple[str, ...]
    # The first so many of the files are there when the save is killed.
    written: int = 1
    # Files that are beside the checkpoints whatever happens.
    beside: tuple[str, ...] = ()
    # The pointer's name and text with `{n}`; it names the last complete checkpoint.
    pointer: tuple[str, str] = ("", "")
    numbers: tuple[int, ...] = (1000, 2000, 3000)
    counts: str = "step"
    # Files that name an unfinished save.
    marks: tuple[str, ...] = field(default=())


def _ranks(template: str, count: int) -> tuple[str, ...]:
    return tuple(template.replace("RANK", str(rank)) for rank in range(count))


_DCP = ("__0_0.distcp", "__1_0.distcp", ".metadata")


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}{name}" for name in names)


LISTINGS = (
    Listing(
        "verl, RLinf",
        "volcengine/verl:verl/trainer/ppo/ray_trainer.py",
        (
            *_ranks("global_step_{n}/actor/model_world_size_2_rank_RANK.pt", 2),
            *_ranks("global_step_{n}/actor/optim_world_size_2_rank_RANK.pt", 2),
            *_ranks("global_step_{n}/actor/extra_state_world_size_2_rank_RANK.pt", 2),
            "global_step_{n}/data.pt",
        ),
        3,
        pointer=("latest_checkpointed_iteration.txt", "{n}"),
    ),
    Listing(
        "verl, RLinf",
        "RLinf/RLinf:rlinf/runners/embodied_runner.py",
        _in("checkpoints/global_step_{n}/actor/", "dcp_checkpoint/__0_0.distcp", "dcp_checkpoint/.metadata", "rng.pt"),
    ),
    Listing(
        "DeepSpeed, OpenRLHF",
        "OpenRLHF/OpenRLHF:openrlhf/utils/deepspeed/deepspeed.py",
        (
            "_actor/global_step{n}/mp_rank_00_model_states.pt",
            "_actor/global_step{n}/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        ),
        pointer=("_actor/latest", "global_step{n}"),
    ),
    Listing(
        "NeMo",
        "NVIDIA/NeMo:nemo/lightning/pytorch/callbacks/model_checkpoint.py",
        _in(
            "gpt--val_loss=2.31-step={n}-consumed_samples=64000.0/",
            *("weights/__0_0.distcp", "weights/__1_0.distcp", "weights/.metadata", "context/model.yaml"),
        ),
        4,
        marks=("gpt--val_loss=2.31-step={n}-consumed_samples=64000.0-unfinished",),
    ),
    Listing(
        "NeMo",
        "NVIDIA/NeMo:nemo/lightning/pytorch/callbacks/model_checkpoint.py",
        _in("gpt--val_loss=2.31-step={n}-consumed_samples=64000.0-last/", *_DCP, "common.pt", "metadata.json"),
        2,
    ),
    Listing(
        "NeMo 2, epochs",
        "NVIDIA/NeMo:nemo/lightning/pytorch/callbacks/model_checkpoint.py",
        _in("gpt--val_loss=2.31-epoch={n}-last/", *(f"weights/{name}" for name in _DCP)),
        numbers=(0, 1, 2),
        counts="epoch",
    ),
    Listing(
        "Composer, sharded",
        "mosaicml/composer:composer/callbacks/checkpoint_saver.py",
        _in("run/ep0-ba{n}/", *_DCP),
        2,
        pointer=("run/latest-rank0.pt.symlink", "run/ep0-ba{n}"),
    ),
    Listing(
        "Composer",
        "mosaicml/composer:composer/callbacks/checkpoint_saver.py",
        ("ep0-ba{n}-rank0.pt", "ep0-ba{n}-rank1.pt"),
        pointer=("latest-rank0.pt.symlink", "ep0-ba{n}-rank0.pt"),
    ),
    Listing(
        "orbax, MaxText",
        "google/orbax:checkpoint/orbax/checkpoint/_src/path/atomicity.py",
        _in(
            "{n}/",
            "_CHECKPOINT_METADATA",
            "items/_METADATA",
            "items/manifest.ocdbt",
            f"items/d/{'0123456789abcdef' * 2}",
        ),
        2,
    ),
    Listing(
        "orbax on GCS",
        "google/orbax:checkpoint/orbax/checkpoint/_src/path/atomicity.py",
        _in("{n}/", "_CHECKPOINT_METADATA", "default/manifest.ocdbt", "commit_success.txt"),
        2,
    ),
    Listing(
        "Stable-Baselines3",
        "DLR-RM/stable-baselines3:stable_baselines3/common/callbacks.py",
        ("rl_model_{n}_steps.zip", "rl_model_vecnormalize_{n}_steps.pkl"),
    ),
    Listing("bare numbers", "common script", _in("{n}/", "model.safetensors", "optimizer.pt")),
    Listing(
        "OLMo-core",
        "allenai/OLMo-core:src/olmo_core/train/checkpoint.py",
        _in(
            "step{n}/", *(f"model_and_optim/{name}" for name in _DCP), "train/rank0.pt", "config.json", ".metadata.json"
        ),
        5,
    ),
    Listing(
        "OLMo, unsharded",
        "allenai/OLMo:olmo/checkpoint.py",
        _in("step{n}-unsharded/", "model.pt", "optim.pt", "train.pt"),
        2,
    ),
    Listing(
        "SageMaker model parallel",
        "aws/amazon-sagemaker-examples:training/distributed_training/pytorch/model_parallel",
        _in("total_steps{n}_partial/", "model_0_0_0.pt", "model_1_0_0.pt", "optimizer_0_0_0.pt", "optimizer_1_0_0.pt"),
        3,
    ),
    Listing(
        "SageMaker model parallel",
        "documentation of smp.save_checkpoint",
        _in("step_{n}_partial/", "model_0.pt", "optimizer_0.pt"),
    ),
    Listing(
        "accelerate",
        "huggingface/accelerate:src/accelerate/accelerator.py",
        _in(
            "checkpoints/checkpoint_{n}/", "model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"
        ),
        2,
        numbers=(0, 1, 2),
        counts="save",
    ),
    Listing(
        "nanotron",
        "huggingface/nanotron:src/nanotron/serialize/main.py",
        _in(
            "{n}/", "model/w_pp-rank-0-of-1.safetensors", "optimizer/optimizer_pp-0-of-1.pt", "checkpoint_metadata.json"
        ),
        2,
        pointer=("latest.txt", "{n}"),
    ),
    Listing(
        "torchtune",
        "pytorch/torchtune:torchtune/training/checkpointing/_checkpoint_client.py",
        _in("epoch_{n}/", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "recipe_state.pt"),
        2,
        numbers=(0, 1, 2),
        counts="epoch",
    ),
    Listing(
        "torchtune",
        "pytorch/torchtune:torchtune/training/checkpointing/_checkpointer.py",
        _in("epoch_{n}/", "adapter_model.safetensors", "adapter_config.json", "model-00001-of-00001.safetensors"),
        2,
        beside=("recipe_state/recipe_state.pt",),
        numbers=(0, 1, 2),
        counts="epoch",
    ),
    Listing(
        "torchtune and others",
        "pytorch/torchtune:torchtune/training/checkpointing/_checkpoint_client.py",
        _in("step_{n}/", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "recipe_state.pt"),
        2,
    ),
    Listing(
        "fairseq",
        "facebookresearch/fairseq:fairseq/checkpoint_utils.py",
        ("checkpoint_1_{n}-shard0.pt", "checkpoint_1_{n}-shard1.pt"),
        beside=("checkpoint_best.pt", "checkpoint_last.pt"),
    ),
    Listing(
        "fairseq, epochs",
        "facebookresearch/fairseq:fairseq/checkpoint_utils.py",
        ("checkpoint{n}-shard0.pt", "checkpoint{n}-shard1.pt"),
        numbers=(1, 2, 3),
        counts="epoch",
    ),
    Listing(
        "TensorFlow",
        "tensorflow/tensorflow:tensorflow/python/training/saver.py",
        tuple(f"model.ckpt-{{n}}.{rest}" for rest in ("data-00000-of-00002", "data-00001-of-00002", "index", "meta")),
        pointer=("checkpoint", 'model_checkpoint_path: "model.ckpt-{n}"\nall_model_checkpoint_paths: "model.ckpt-1"'),
    ),
    Listing(
        "TensorFlow 2",
        "tensorflow/tensorflow:tensorflow/python/checkpoint/checkpoint_management.py",
        ("tf_ckpts/ckpt-{n}.data-00000-of-00001", "tf_ckpts/ckpt-{n}.index"),
        numbers=(1, 2, 3),
        counts="save",
    ),
    Listing(
        "file with a number",
        "karpathy/nanochat:nanochat/checkpoint_manager.py",
        ("model_{n:06d}.pt", "optim_{n:06d}_rank0.pt", "optim_{n:06d}_rank1.pt", "meta_{n:06d}.json"),
        2,
    ),
    Listing(
        "file with a number",
        "openai/guided-diffusion:guided_diffusion/train_util.py",
        ("model{n:06d}.pt", "ema_0.9999_{n:06d}.pt", "opt{n:06d}.pt"),
        2,
        numbers=(10_000, 20_000, 30_000),
    ),
    Listing("VITS", "jaywalnut310/vits:train.py", ("G_{n}.pth", "D_{n}.pth")),
    Listing(
        "Levanter",
        "stanford-crfm/levanter:src/levanter/checkpoint.py",
        _in("run/step-{n}/", "model/0/.zarray", "model/0/0.0", "opt_state/0/0.0", "metadata.json"),
        3,
    ),
    Listing(
        "Hugging Face Trainer, PaddleNLP",
        "PaddlePaddle/PaddleNLP:paddlenlp/trainer/trainer.py",
        _in("checkpoint-{n}/", "model_state.pdparams", "optimizer.pdopt", "scheduler.pdparams", "trainer_state.json"),
        2,
    ),
    Listing(
        "diffusers, accelerate",
        "huggingface/diffusers:examples/text_to_image/train_text_to_image.py",
        _in("checkpoint-{n}/", "unet/diffusion_pytorch_model.safetensors", "optimizer.bin", "random_states_0.pkl"),
        2,
    ),
    Listing(
        "XTuner",
        "InternLM/xtuner:xtuner/engine/_strategy/deepspeed.py",
        _in("iter_{n}.pth/", "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        pointer=("last_checkpoint", "/opt/ml/checkpoints/iter_{n}.pth"),
    ),
    Listing(
        "ColossalAI and others",
        "hpcaitech/Open-Sora:opensora/utils/ckpt.py",
        _in(
            "run/epoch0-global_step{n}/",
            "model/model-00001-of-00001.safetensors",
            "optimizer/optim.bin",
            "running_states.json",
        ),
        2,
    ),
    Listing(
        "kohya, state",
        "kohya-ss/sd-scripts:library/train_util.py",
        _in("lora-step{n:08d}-state/", "model.safetensors", "optimizer.bin"),
    ),
    Listing(
        "orbax, Flax, T5X",
        "google-research/t5x:t5x/checkpoints.py",
        _in("checkpoint_{n}/", "target.x/0.0", "state.x/0.0", "checkpoint"),
        2,
    ),
)

# One file for each checkpoint: a killed upload leaves none, or a smaller one.
FILES = (
    ("file with a step", "step", "open-mmlab/mmengine:mmengine/hooks/checkpoint_hook.py", "iter_{n}.pth"),
    ("file with an epoch", "epoch", "open-mmlab/mmengine:mmengine/hooks/checkpoint_hook.py", "epoch_{n}.pth"),
    ("file with a number", "step", "facebookresearch/fvcore:fvcore/common/checkpoint.py", "model_{n:07d}.pth"),
    ("file with an epoch", "epoch", "ultralytics/ultralytics:ultralytics/engine/trainer.py", "weights/epoch{n}.pt"),
    ("file with a step", "step", "common script", "step_{n}.pt"),
    ("file with a step", "step", "common script", "gpt-epoch=3-step_{n}-val_loss=0.12.pt"),
    ("file with a number", "step", "common script", "ckpt_{n}.pt"),
    ("file with a number", "step", "mozilla/TTS#643", "checkpoint_{n}.pth.tar"),
    ("file with a number", "step", "leggedrobotics/rsl_rl:rsl_rl/runners/on_policy_runner.py", "logs/model_{n}.pt"),
    ("file with an epoch", "epoch", "keras-team/keras:keras/src/callbacks", "cp-{n:04d}.weights.h5"),
    ("file with a number", "step", "common script", "ckpt-{n}.keras"),
    ("fairseq", "step", "facebookresearch/fairseq:fairseq/checkpoint_utils.py", "checkpoint_2_{n}.pt"),
    ("fairseq, epochs", "epoch", "facebookresearch/fairseq:fairseq/checkpoint_utils.py", "checkpoint{n}.pt"),
    ("Lightning", "step", "Lightning-AI/pytorch-lightning", "epoch=0-step={n}.ckpt"),
    ("Lightning", "step", "Lightning-AI/pytorch-lightning", "version_0/checkpoints/gpt-step={n}-val_loss=2.31.ckpt"),
    ("Composer", "step", "mosaicml/composer:composer/callbacks/checkpoint_saver.py", "ep1-ba{n}-rank0.pt"),
    ("file with an epoch", "epoch", "Lightning-AI/pytorch-lightning", "epoch={n}-val_loss=0.12.ckpt"),
)
