"""Ordered rules that derive the cause of a failure from the text of a failed job.

`RULES` is searched from the top and the first match wins, so the order matters. Faulty hardware named inside a watchdog
message is a hardware failure, a root error has priority over the errors that it causes on other ranks, and vague words
come last. A rule that is not `firm` matches such vague words and never overrides the training program's own report.
`FALLBACKS`, `WRAPPERS` and `LOOSE` are tried in this order if `RULES` has no match; each is less specific.
"""

import re
from dataclasses import dataclass
from functools import partial

from rerail.model.causes import Cause
from rerail.model.lazy_pattern import LazyPattern


@dataclass(frozen=True, slots=True)
class SymptomRule:
    """A rule that matches if any of its patterns occurs in the text."""

    name: str
    cause: Cause
    pattern: LazyPattern
    # May override the training program's own report of a user error.
    firm: bool

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first match of any of the patterns, or None."""
        return self.pattern.search(text)


_LIMITED = {r"\w*": r"\w{0,60}", r"\w+": r"\w{1,60}", r"\S*": r"\S{0,300}", r"\S+": r"\S{1,300}", r"\d+": r"\d{1,60}"}


def _near(thing: str) -> tuple[str, str]:
    """Return patterns for a thing close to a word for a problem in one sentence, in either order."""
    thing += r"\b(?!\.\w|->|::)"  # not the object of an expression of a program: "&resources.deviceHandle"
    thing = rf"(?<!/)\b{thing}"  # not a folder: "/builds/worker/"
    return rf"{thing}(?:(?!\. ).){{0,40}}\b{_TROUBLE}", rf"\b{_TROUBLE}\b(?:(?!\. ).){{0,25}}{thing}"


def _list_not_finite(name: str) -> tuple[str, str]:
    """Return patterns of a value that is nan or inf; scripts begin with inf for the best loss or the validation's."""
    no_best = r"(?<!best[ _])(?<!val[ _])(?<!eval[ _])(?<!test[ _])(?<!min[ _])(?<!validation[ _])"
    value = rf"{name}['\"]?\W{{1,4}}"
    return rf"(?<![a-z]){value}nan\b", rf"(?<![a-z]){no_best}{value}[-+]?inf(?:inity)?\b"


def _rule(name: str, cause: Cause, *patterns: str, firm: bool = True) -> SymptomRule:
    """Return the rule with limited repetitions, because unlimited ones may take quadratic time."""
    text = "|".join(patterns)
    for unlimited, limited in _LIMITED.items():
        text = text.replace(unlimited, limited)
    return SymptomRule(name, cause, LazyPattern(text, re.IGNORECASE), firm)


_vague_rule = partial(_rule, firm=False)

# "Xid (PCI:0000:9b:00): 94", "XID 79", "Xid error: 63". The quantifiers are possessive so that an old-style address,
# "Xid (0000:01:00): 31", is never taken for the number.
_XID = r"\bs?xid\b(?:\s?\((?:PCI:)?[0-9a-f:.]{5,20}\))?+(?: (?:errors?|codes?|events?))?+[\s:=#(]*+"
# NVIDIA's catalogue: 13, 31, 43, 68 are faults of the program (bad address, bad instruction), 45 is the driver tidying
# up after a killed process, 63 and 92 are repaired memory. All other numbers are faults of the device.
_XID_PROGRAM, _XID_TIDY = r"(?:13|31|43|68)\b", r"(?:45)\b"
# The errors that argparse prints below the usage.
_ARGPARSE = (
    r"(?<!\w)error: (?:argument|unrecognized arguments|the following arguments|one of the arguments|ambiguous option)"
)
# Followed by these words, or in "multi-GPU", a use of GPUs or CPUs is meant, and not the part of a machine.
_NOT_A_USE = (
    r"(?! ?(?:node|memory|util|support|accelerat|collective|training|kernel|build|mode|backend|direct|offload|version|"
    r"inference|implementation|execution|tensors?\b|ops?\b|only))"
)
_PART = (
    rf"(?:(?<!multi[- ])(?:GPUs?{_NOT_A_USE}|CPUs?{_NOT_A_USE})|NVLinks?|NV-?Switch\w*|HBM\d*\w*|DIMMs?|PSUs?"
    r"|motherboard|graphics cards?)"
)
# A worker or a pod is as often a process as a machine, so "worker failed" is only used by the rules for notes.
# Not the nodes of a graph of operations.
_MACHINE = r"(?:(?<!graph )(?<!failed for )nodes?|hosts?|instances?|machines?|servers?(?! socket)|VMs?|TPUs?)"
_NODE = rf"(?:{_MACHINE}|workers?|pods?)"
# Each is read in one way, the longest first: of a list of hosts that can be read in two, a search would try every mix.
_HOST = (  # gpu-2-12, a100-st-p4d24xlarge-22, r10i4n8, n30041, jean-zay-12
    r"(?>(?:[a-z]{1,12}\d{0,4}(?:-[a-z0-9]{1,15}){1,4}-\d+|[a-z]{1,8}\d+[a-z]{1,4}\d+\w{0,8}|"
    r"[a-z]{1,12}-?(?:[a-z]{1,15}-)?\d{2,})\b)"
)
_WENT = r"(?:(?:is|are|was|were|went|has|have|had|got|breaks?|broke|been|goes|just|suddenly|unexpectedly|gone) )*"
_DOWN = (
    r"(?:down|died|dead|lost|crash(?:ed)?|failed|disappeared|unreachable|evicted|preempted|terminated by|rebooted"
    r"|restarted|reset)\b"
)
_TROUBLE = (
    r"(?:fail\w*|errors?|problem\w*|issues?|bad|brok\w+|break\w*|crash\w*|die[sd]?|dying|dead|down|gone|missing|wrong"
    r"|unhealthy|fault\w*|defect\w*|los[ts]\w*|trouble\w*|invalid|flaky|unstable|malfunction\w*|unavailable|unable"
    r"|insufficient|unreachable|cannot|can't|couldn't)"
)
_RECORD = (
    r"(?:data(?:set)?|images?|jpe?gs?|pngs?|records?|samples?|shards?|parquet|tfrecords?|arrow|tar|zip|archives?|csv"
    r"|jsonl?|inputs?|examples?|documents?|tokens?|labels?|annotations?|video|audio)"
)
_DATA_PATH = (
    r"(?:/opt/ml/input|/data(?:sets?|_?dir)?/|/(?:train|val|valid|validation|test|images?|labels?|corpus)[/;]"
    r"|\.(?:csv|tsv|jsonl|parquet|arrow|tfrecords?|rec|jpe?g|png|npy|npz|h5|hdf5|bin|idx|wav|mp[34]|flac|tar|lmdb"
    r"|xml|(?<!requirements\.)(?<!constraints\.)(?<!CMakeLists\.)txt)\b)"
)

# A full disk, and the names of file systems that several jobs share: FSx for Lustre may be an input channel.
_FULL = (
    r"(?:(?<!Data download failed:)No space left on device|\bStorageFull\b|\bdisk (?:is |was |got )?full\b"
    r"|Errno 28\b|\bos error (?:28|112)\b)"
)
_SHARED = (
    r"(?:/fsx\b(?!-)|/efs\b|/(?:lustre|nfs|gpfs|beegfs|weka|shared)\w*/|/opt/ml/input/"
    r"|(?<![-\w/])(?:FSx|Lustre|NFS|EFS|GPFS)\b(?!-))"
)

# What names a file of settings, and what a reader says of one.
_SETTINGS_FILE = r"\b(?:\w*config\w*|settings|hparams|ds_\w+)(?:\.(?:json|ya?ml|toml|ini)|(?: files?)?)\b"
_PARSED = r"(?:\b(?:Could not|Cannot|Failed to|Unable to|Error) (?:pars|decod)\w+|\b\w*DecodeError\b)"

DAMAGED_CHECKPOINT, DEVICE_MEMORY, IMPORT = "damaged-checkpoint", "device-memory", "missing-import"

RULES: tuple[SymptomRule, ...] = (
    # ---- A limit of the platform: nothing failed.
    _rule("max-runtime", Cause.UNKNOWN, r"exceeded MaxRuntimeInSeconds|\bMaxRuntimeExceeded\b|\bMaxWaitTimeExceeded\b"),
    # ---- A faulty device, whatever else the line contains.
    _rule(
        "gpu-memory-error",
        Cause.HARDWARE,
        r"uncorrect(?:able|ed)[\w\s,()-]{0,40}?(?:ECC|memory|HBM|NVLink|DRAM|SRAM|parity|PCIe|error)|ECC_UNCORRECTABLE",
        r"\bdouble[- ]bit\b|\bDBEs?\b.{0,30}(?:ECC|error|retire)|(?:contained|uncontained|unrecoverable|fatal) ECC",
        r"\bECC (?:memory )?(?:error|failure|fault|issue|problem)s?\b(?! corrected|(?: counts?)?\W{0,3}0\b)",
        r"row[- ]?remap\w*.{0,30}(?:fail|pending|reset)",
        r"(?:remap\w*|retire\w*) (?:rows?|pages?).{0,30}(?:fail|pending|reset)",
    ),
    _rule(
        "gpu-lost",
        Cause.HARDWARE,
        r"fall(?:en|ing|s) off the bus|fell off the bus|\bGPUs? (?:\S+ ){0,4}(?:is|are|was|were|has been|got) lost\b",
        r"NVML_ERROR_GPU_IS_LOST|\blost (?:a |an |one |the |\d )?GPUs?\b|CUDA_ERROR_(?:UN)?CONTAINED",
        r"CUDA_ERROR_(?:HARDWARE|NVLINK|EXTERNAL_DEVICE|TENSOR_MEMORY)\w*",
        r"Unable to determine the device handle for GPU|\bHW Exception by GPU\b",
        r"reboot the system to recover this GPU|\bGPU (?:requires|needs) (?:a )?reset|GPU recovery action changed",
        # AMD's driver: a queue of the GPU is stuck, and the driver resets it or the GPU. IB: a buffer of commands.
        r"\bamdgpu\b.{0,80}(?:\bring \S{1,40} timeout|\bGPU reset begin|device wedged|Waiting for fences timed out"
        r"|\bIB (?:ring )?test (?:failed|timed out))|\bIB test failed on (?:ring )?(?:gfx|sdma|comp|kiq|vcn|uvd)",
        r"RmInitAdapter failed|GSP (?:RPC|firmware).{0,20}(?:timeout|timed out|error|fail)|Timeout.{0,30}GSP",
        # The kernel's driver complains about the device itself, whatever words it chooses; an Xid is read below.
        r"NVRM: (?!Xid|loading|API mismatch|No NVIDIA)[^:]{0,60}.{0,120}?(?:fail|error|fatal|cannot|time(?:d )?-?out|"
        r"hung)",
        r"(?:only|just) \d+ (?:of (?:the )?\d+ )?GPUs? (?:are |is |were )?(?:visible|detected|found|left|show\w*|seen)",
        r"\b(?:short|missing|minus) (?:a|an|one|two|\d) GPUs?\b|\bGPUs? (?:is|are|was|were) (?:a )?(?:loss|missing|"
        r"gone)\b",
        rf"(?:(?<!multi[- ])GPUs?{_NOT_A_USE}|cards?) (?:\S+ ){{0,3}}(?:not|n't) "
        r"(?:working(?! hard)|work|detected|recogni[sz]ed|showing|show)\b",
        r"GPU.{0,30}initiali[sz]ation fail|(?<!npm )\bERR!|nvml error: (?:unknown|gpu)|NVML_ERROR_UNKNOWN",
        r"NVIDIA-SMI has failed because it couldn't communicate|(?:NVML|nvml\w+\(\d\) failed): (?:Unknown|GPU)",
    ),
    _rule("xid", Cause.HARDWARE, _XID + rf"(?!{_XID_PROGRAM}|{_XID_TIDY})\d{{1,5}}\b"),
    _rule(
        "link-fault",
        Cause.HARDWARE,
        r"NV-?Link\b.{0,40}(?:error|fail|fault|inactive|flap)(?!s? ?(?:count)?[:=] ?0)",
        r"\bNV-?Switch\b.{0,40}(?:error|fail|fault|fatal)|fabric ?manager.{0,40}(?:error|fail|not running|not started)",
        r"\bsystem not yet initialized|PCIe Bus Error: severity=(?:Uncorrect|Fatal|Non-?Fatal)",
        r"AER:.{0,20}(?:Uncorrect|Fatal)|local catastrophic error|Async fatal event.{0,30}(?:device|catas)",
        r"mlx5\w* .{0,60}(?:health compromised|fatal sensor|firmware (?:fatal )?error)",
    ),
    _rule(
        "machine-check",
        Cause.HARDWARE,
        rf"\b(?:faulty|defective|bad|dead|broken) (?:\w+ )?{_PART}\b",
        r"info ?ROM .{0,20}corrupt|(?:temperature|thermal|clocks?)\b.{0,40}(?:threshold|throttl|exceed|slowdown)",
        r"\[Hardware Error\]|\bmachine[- ]check (?:exception|error|event)|\bMCE\b.{0,30}(?:error|fatal|CPU)",
        r"\bEDAC .{0,40}\bUE\b|\b(?:hardware|HW) (?:failure|fault|error|issue|problem|malfunction|defect)s?\b",
        r"failed (?:the )?hardware (?:check|test)|(?:NRT_EXEC_HW_ERR|hardware stack error)|HW slowdown",
        r"\bmemory subsystem error|\bcold[- ]boots?\b|\bPSUs?\b|\bpower[- ]suppl(?:y|ies) (?!.{0,20}(?:fine|ok))",
        r"\bCPU (?:error|failure|fault|machine)|\b(?:thermal (?:shutdown|trip|violation)|over-?heat\w*|overtemp\w*)",
        r"(?:power supply|PSU|fan|DIMM|motherboard|NVMe|SSD|disk drive|hard drive) (?:\w+ )?(?:fail|fault|died|"
        r"error|broke)\w*",
        r"nvme\w*:? .{0,40}(?:controller is down|I/O (?:Cmd|error)|removing after probe)|\bDisk read failed\b",
        r"(?:Buffer |blk_update_request: )?I/O error(?:,| on) dev\w* (?:nvme|sd|xvd|vd)\w+|\bMedium Error\b",
        r"EXT4-fs (?:error )?\(\w*(?: ?(?:nvme|sd|xvd)\w*)\).{0,80}(?:I/O error|read-only|Cannot read|error -5)",
        r"\bnode[-_ ]?(?:health[-_ ]?)?(?:pre[-_ ]?)?check\w{0,3} .{0,20}?fail|fail\w* (?:\w+ ){0,3}node[- _]?check",
        r"\bCHECK_FAIL\b|NodeCheck\w*Fail|\b(?:GPU|network|matmul|bandwidth)[- ]checks? (?:has |have )?fail",
        r"\b(?:failed|failing|bad|broken|faulty|dead) (?:disk|drive)s?\b|\bSMART .{0,60}FAILED",
        r"\b(?:disk|drive) (?!(?:is |was )?full|space|quota|usage)(?:\S+ )?(?:has |have )?(?:failed\b|failure|died)",
        r"DCGM.{0,60}\bfail|fail\w* .{0,30}(?:DCGM|nvidia-smi|burn-in|GPU diagnostic)|silent data corruption",
    ),
    # ---- No machines available: waiting helps, more attempts do not.
    _rule(
        "capacity",
        Cause.CAPACITY,
        r"\b(?:no|not enough) (?:ml\.)?(?:p|g|trn|inf)\d\w*(?:\.\w+)?(?: instances?| nodes?)? available",
        r"provision(?:ing)? failed|Unable to provision requested ML compute capacity|UnfulfillableCapacity",
        r"fail\w* to (?:provision|acquire) (?:\w+ ){0,3}(?:resources|instances?|capacity|nodes?|machines?)",
        r"\bCapacityError\b|Insufficient(?:Instance|HostCapacity|ReservedInstance|Capacity|FreeAddresses)\w*",
        r"\b(?:insufficient|not (?:have )?(?:enough|sufficient)|lack of|no|out of|ran out of|"
        r"short of) (?:[\w.*-]+ ){0,4}capacity\b(?! of \d)",
        r"capacity (?:error|crunch|shortage|constraint|exhausted|(?:is )?unavailable|not available|issue|problem)s?",
        r"\binstances?\b.{0,50}(?:(?:temporarily|is|are|was|were) (?:\w+ )?(?:un|not (?:\w+ )?)available|out of stock)",
        r"\b(?:no|not enough|insufficient) (?!CUDA)(?:\S+ ){0,3}(?:instances?|GPUs?|nodes?|machines?)(?: offers?)? "
        r"(?:are |is |were )?(?:currently )?available\b",
        r"ResourceLimitExceeded|VcpuLimitExceeded|InstanceLimitExceeded|MaxSpotInstanceCountExceeded",
        r"SpotMaxPriceTooLow|account-level service limit|(?:service|instance|vCPU|account|GPU|resource|"
        r"GPUS_ALL_REGIONS) ?(?:quota|limit)s? .{0,40}(?:exceed|reach|insufficient|increase)",
        r"Quota '\w+' exceeded|exceeded quota:",
        r"ZONE_RESOURCE_POOL_EXHAUSTED|RESOURCE_POOL_EXHAUSTED|does not have enough resources available to fulfill",
        r"\bexceed\w* (?:\w+ )?quota\b|(?<!disk )\bquotas? (?:\w+ ){0,2}(?:exceed|exhaust|reach|used up|of 0\b)|"
        r"OutOfQuota|\b(?:out of|enough|over|no|insufficient) (?:\w+ ){0,3}quotas?\b",
        r"\b(?:on-demand|spot|GPU|EC2|unused|spare) capacity (?:waits?|in)\b|waited for capacity",
        r"\bstock-?out\b|SkuNotAvailable|AllocationFailed|ResourcesUnavailableError",
        r"nodes are available: .{0,80}Insufficient|FailedScheduling|MaxPendingTime\w*",
        r"Spot (?:instance|request|capacity|block)?s?.{0,40}(?:interrupt|reclaim|terminat|no capacity|unfulfill)",
        r"(?:LimitExceeded|exceeded|insufficient|over) (?:\w+ )?(?:instance|vCPU|GPU)s? (?:quota|limit)",
    ),
    _rule(
        "sagemaker-internal",
        Cause.INFRASTRUCTURE,
        r"InternalServer(?:Error|Exception)|We encountered an internal error|\bInternalFailure\b|InternalServiceError",
        r"Launched instance was unhealthy|instance (?:health check|retirement)|(?:unhealthy|impaired) instance",
        rf"\b{_MACHINE}(?:[- ]\S+)?(?: \S+){{0,3}}? (?:not |un-?)healthy\b|\bUNHEALTHY_\w+",
        r"internal service error|system status check",
    ),
    # ---- Limits and settings: the same values fail every time, on every machine.
    _rule(
        "compiler-limit",
        Cause.USER_CODE,
        r"out of resources?: .{0,40}Required|\bOutOfResources\b|\b(?:ptxas|nvcc) .{0,20}(?:error|fatal)\b",
        r"Hardware limit(?:ation)?: ?\d|uses too much (?:shared|local|constant|parameter) |max regcount of \d",
        r"Error compiling \S+\.(?:cl|cu|ptx)\b",
    ),
    # The file is sound: PyTorch refuses to load a type that it holds.
    _rule("refused-type", Cause.USER_CODE, r"Weights only load failed\. This file can still|not an allowed global"),
    _rule("unreadable-settings-file", Cause.USER_CODE, rf"{_PARSED}.{{0,80}}{_SETTINGS_FILE}"),
    _rule("port-in-use", Cause.USER_CODE, r"address (?:is )?already in use|EADDRINUSE|server socket has failed"),
    _rule(
        "network-settings",
        Cause.USER_CODE,
        # EFA refuses to register memory: the limit of locked memory, or versions that do not fit.
        r"Unable to register (?:memory|MR)\b|\b(?:libfabric|efa|NET/OFI)\b.{0,200}cannot allocate memory",
        r"\b(?:fi_mr_reg|ibv_(?:reg|create|alloc)_|nccl_net_ofi)\w*.{0,60}Cannot allocate memory|max locked memory",
        # A host name of digits, or a netmask, is taken for an address that no host has.
        r"\bconnect to \W{0,2}(?:::ffff:)?(?!0\.0\.0\.0)(?:0|255)(?:\.\d+){3}\b|network address of \(\d+, \d+\)",
        r"cannot allocate memory for EFA|Only EFA provider is supported|NET/OFI\b.{0,200}Invalid argument",
        # libfabric finds no provider: the container lacks /dev/infiniband, or the library is another one.
        r"fi_getinfo\b.{0,9}fail|Could not (?:open|parse) (?:XML|graph|topology|tuner)|\bfamily \d+ is neither AF_INET",
        r"nccl(?:System|Internal|Unhandled|Invalid)\w*.{0,300}\(\s?NCCL_\w+ set by environment",
        r"NCCL (?:WARN|error:) (?:Invalid (?:rank|device|root)|Bootstrap Root : (?:rank \d|mismatch)|Message trunc)",
        r"nccl(?:InvalidUsage|InvalidArgument)|NCCL(?: operation nccl.{0,240}|.{0,60})invalid (?:usage|argument)",
        r"Duplicate GPU detected|peer access is not|(?:no|unable to find a?) ?(?:socket |usable )?interfaces? found",
        r"Bootstrap : no socket interface|NCCL.{0,40}mismatched? version|undefined symbol: nccl",
        # The image lacks a certificate, or a firewall puts its own in front of every server.
        r"self[- ]signed certificate|unable to get (?:local )?issuer certificate|signed by unknown authority",
        r"no algorithm/protocol available|NCCL.{0,40}(?:unsupported|unknown) (?:algorithm|protocol|value)",
    ),
    # ---- Memory, on the device or the host: the same job needs the same memory again.
    _rule(
        DEVICE_MEMORY,
        Cause.OOM,
        r"\b(?:CUDA|HIP|ROCm|MPS|XPU|NPU|GPU|TPU|device|HBM|VRAM|accelerator)\w*(?: error:| backend| memory| has| "
        r"is| ran| failure(?: \d+)?)? .{0,3}\bout of memory",
        r"(?<!ray\.exceptions\.)(?<!java\.lang\.)\bOutOfMemory\w*|OUT_OF_MEMORY|\bMemoryAllocation\b|cudaErrorMemoryAllocation",
        r"cudaMalloc\w* .{0,20}(?:failed|out of memory)",
        r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|NVSHMEM)_(?:STATUS_)?ALLOC_FAILED",
        r"RESOURCE_EXHAUSTED: (?!.{0,60}(?:quota|rate))|Resource ?Exhausted(?:Error)?: .{0,40}(?:OOM|memory|alloc)",
        r"(?:Attempting to|Failed to|trying to) (?:allocate|reserve) [\d.]+ ?[KMGT]i?B?\b|OOM when allocating",
        r"ran out of (?:\w+ ){0,2}memory|ran out of (?:GPU )?RAM|exhausted (?:\w+ )?memory|memory space hbm",
        r"failed to alloc\w* .{0,40}(?:on device|from device|memory)|could not allocate .{0,40}(?:device|GPU) memory",
        r"NRT_RESOURCE|nrt_\w*alloc\w* status=4|Failed to allocate .{0,30}bytes|CUBLAS_STATUS_NOT_INITIALIZED",
        r"Dst tensor is not initialized",
        # Convolutions that find no workspace.
        r"Unable to find a valid cuDNN algorithm|unable to find an engine to execute|no valid convolution algorithms",
    ),
    _rule(
        "shared-memory",
        Cause.OOM,
        r"(?:insufficient|out of) shared memory|raise your shared memory limit|segment /dev/shm/|fallocate fail",
        r"/dev/shm.{0,80}(?:No space|full|too small|insufficient)|No space left on device.{0,60}/dev/shm",  # nosec B108
        r"(?:worker|process) .{0,40}killed by signal: (?:Bus error|Killed)|\bSIGBUS\b|(?<!PCIe )\bBus error\b",
        r"unable to (?:write to|open) (?:file|shared memory object) <\S{0,40}torch_(?!.{0,80}Too many open)",
        r"unable to (?:open|write|resize|mmap|allocate) .{0,30}(?:shared memory|bytes from file).{0,120}(?:No "
        r"space|Cannot allocate|memory)",
    ),
    _rule(
        "host-memory",
        Cause.OOM,
        r"\boom[-_ ]?kill\w*|\boom[-_ ]reaper|Memory cgroup out of memory|cgroup out-of-memory",
        r"out[- ]of[- ](?:\w+ ){0,2}(?:memory|[DV]?RAM|HBM)\b|(?:memory|[DV]?RAM|HBM) overflow|"
        r"overflow\w* .{0,25}[DV]?RAM\b",
        r"std::bad_alloc|\b\w*MemoryError\b|DefaultCPUAllocator|Cannot allocate memory|can't allocate memory",
        r"could not allocate (?:memory|bytes)|not (?:have )?enough (?:\w+ )?memory",
        r"Unable to allocate [\d.]+ ?[KMGTP]i?B|\bmalloc(?:\(\d*\))?:? (?:\w+ )?fail",
        r"memory allocation (?:of \d+ bytes )?failed|failed to allocate memory",
        r"(?:exceed\w*|over|beyond|above) (?:the |its |of )?(?:\w+ )?(?:memory|RSS|RAM|virtual memory) "
        r"?(?:limits?|quota|usage)?\b(?! bandwidth)",
        r"memory (?:limit|usage|pressure|threshold) .{0,30}(?:exceed|reach|high|kill|evict)",
        r"killed due to (?:the node running low on )?memory|low on resource: memory|MemoryPressure",
        r"instance type with more memory|larger instance|Java heap space|GC overhead limit",
        r"insufficient (?:\w+ )?(?:memory|RAM)\b|(?:memory|RAM) (?:is|was) (?:not |in)(?:enough|sufficient)",
    ),
    # After the memory that a compiler lacked. Neuron's caches a failure and reports it with an invented signal.
    _rule(
        "failed-compilation",
        Cause.USER_CODE,
        r"Graph compile failed\b|\bcompilation (?:failed|error for this graph)\b|\bFailed compilation (?:with|for)\b",
        r"\bRunNeuronCCImpl: error|\bcached failed neff\b|\bneuronx?-cc (?:failed|terminated abnormally)",
        r"\[(?:TEN|NCC)\w{0,12}\] |Internal (?:compiler|tensorizer) error\b",
    ),
    # ---- A checkpoint that cannot be read, by errors that name it. `DAMAGE` below has those of any file.
    _rule(
        DAMAGED_CHECKPOINT,
        Cause.DAMAGED_CHECKPOINT,
        r"PytorchStreamReader failed|unexpected EOF, expected \d+ more bytes|storage has wrong (?:byte )?size",
        r"\b(?:HeaderTooLarge|HeaderTooSmall|MetadataIncompleteBuffer|InvalidHeader(?:Deserialization|Start|Length)?)\b",
        r"Error while deserializing header|(?:No such file or directory|FileNotFoundError)\b.{0,200}/\.metadata\b"
        r"|not an sstable|NOT_FOUND: Error opening \"(?:zarr\d?|ocdbt|kvstore)\" driver",
        r"(?:DataLoss(?:Error)?|Data loss)\b.{0,120}(?:checkpoint|ckpt|sstable|\.data-\d{5}|restored bytes)",
        r"(?:checkpoints?|ckpt|state_dict)\b[^.;]{0,60}\b(?:is|are|was|seems?|appears?|may be|has been) (?:\w+ )?"
        r"(?:corrupt\w*|truncated|damaged|incomplete)\b",
        r"\b(?:corrupt\w*|truncated|damaged|incomplete) (?:\w+ )?(?:checkpoints?|ckpt)\b",
        r"(?:checkpoints?|ckpt)\S{0,80}\b.{0,60}(?:corrupt\w*|truncated|unexpected end|end-of-central-directory)",
    ),
    # ---- Diverged training, when data is not named as the reason.
    _rule(
        "bad-data-note",
        Cause.DATA,
        r"(?:nois\w*|dirty|bad|garbage|broken|poison\w*|malformed|mis-?label\w*|invalid|toxic|duplicated?|wrong) "
        r"(?:\S+ ){0,5}(?:(?:training|pre-?training|text|task|multi-task|web) )?(?:data(?:set)?|shards?|"
        r"documents?|corpus|samples?|labels?)\b(?! ?(?:type|parallel|loader|is on|_|\())",
        # A check of the annotations themselves, in the words of detection and segmentation trainers.
        r"(?:negative|non-normalized|out.of.bounds|wrong|invalid) (?:class |bbox |box )?(?:label|annotation|box|bbox|"
        r"coordinate)\w*",
        rf"(?<!pickle )\b{_RECORD} (?:\S+ ){{0,3}}(?:was|were|is|are|had been) (?:corrupt\w*|truncated|malformed|"
        r"unreadable|nois\w*|dirty|garbled|mis-?labell?ed|empty)",
    ),
    # ---- Input that cannot be read or trained on.
    _rule(
        "unreadable-input",
        Cause.DATA,
        r"(?:when|while) (?:reading|decoding|loading) (?:the )?(?:image|video|audio|shard|record|sample)",
        r"broken (?:PNG|JPEG|image|GIF) file|(?:unrecognized|unsupported|bad) (?:data |image |audio |video )stream",
        r"UnidentifiedImageError|cannot identify image file|image file is truncated",
        r"broken data stream when reading image|DecompressionBomb\w*|(?:Premature end(?: of)?|Not a|corrupt) JPEG"
        r"|NVJPEG error \"?[34]\b|jpeg_start_decompress|/dali/image/\w+\.cc:",
        r"not a (?:valid )?(?:PNG|JPEG|GIF|WAV|FLAC)\b|(?:Invalid|bad) (?:PNG|JPEG|image) (?:data|file)|Input is not a",
        r"libpng error|unknown image (?:format|file)",
        r"Expected image \(JPEG|(?:Unable|failed) to decode (?:\w+ ){0,2}(?:image|bytes|jpeg|video|audio|frame)",
        r"moov atom not found|No valid stream found in input|Invalid data found when processing input",
        r"Error opening .{0,200}(?:Format not recognised|unknown format)|LibsndfileError|\b(?:flac|mp[34]|ogg|opus|"
        r"vorbis|wav|jpe?g|png|webp|video|audio|h26[45]|av1) (?:\w+ )?decod\w*.{0,40}(?:lost|err|fail)",
        r"decord.{0,40}(?:error|fail)|imdecode|\(-215:Assertion failed\) !_src\.empty",
        rf"(?:corrupt(?:ed)?|truncated|malformed|unreadable|damaged|incomplete) (?:\w+ )?{_RECORD}\b",
        rf"\b{_RECORD} (?:file )?(?:is |appears to be |seems )?(?:corrupt(?:ed)?|truncated|malformed|unreadable|"
        r"damaged)\b|\bDataLossError\b|truncated record|corrupted record|Invalid (?:Record|RecordIO|TFRecord)",
        r"RecordIOWriter::kMagic|Invalid MXRecord|Invalid control character at",
        # An empty document, or one of another kind, may also be a server's answer or settings.
        r"JSONDecodeError(?!: Expecting value: line 1 column 1 \(char 0)|Expecting value: line (?!1 column 1 \(char 0)",
        r"JSON parse error|Extra data: line|Unterminated string starting",
        r"JSONL? .{0,30}(?:parse|decode)|Expecting (?:property name|',' delimiter)|Invalid JSON",
        r"UnicodeDecodeError|codec can't decode|invalid start byte|ParserError|Error tokenizing data|EmptyDataError",
        r"Could not determine delimiter",
        r"No columns to parse|_csv\.Error|Unable to parse|could not convert string to|line contains NUL",
        r"\bArrow(?:Invalid|TypeError|NotImplementedError)\b|Parquet magic bytes|Couldn't deserialize thrift",
        r"Not a (?:Parquet|Feather|gzipped)|Invalid magic number|Unexpected end of stream|ComputeError: parquet",
        r"BadZipFile|not a zip file|tarfile\.\w*Error|ReadError: .{0,40}(?:tar|unexpected end|could not be opened)",
        r"\bable to read \d+ bytes for message body|flatbuffer-encoded \w+ failed|Lz4 compressed input contains",
        r"\bNo data left in file\b|mmap length is greater than file|buffer is smaller than requested size",
        r"unexpected end of data|zlib\.error|incorrect header check|Compressed file ended before|CRC check failed",
        r"end-of-central-directory|Bad (?:CRC|magic|offset for central)|"
        r"unpack\w* requires a buffer of (?:at least )?\d+ bytes",
        r"Data loss: (?:truncated|corrupted|incomplete)|Invalid \\?\\escape|escape character in string",
        r"Blankspace and colon not found|(?:libsvm|csv|recordio|parquet|arrow|jsonl?) format\b",
        r"Failed to (?:load|read|parse|decode|open) (?:\S+ ){0,2}(?:libsvm|csv|tsv|recordio|parquet|jsonl?|arrow|image|"
        r"audio|video|record|shard|dataset|training data)",
        r"Not a gzipped file|LZMAError|Error -3 while decompressing|ZstdError|invalid (?:block|gzip|stored block)",
        # In a traceback that shows the loading of the input; elsewhere DAMAGED_CHECKPOINT matches some of these first.
        r"PytorchStreamReader failed|invalid load key|UnpicklingError|Ran out of input|pickle data was truncated",
        r"unexpected EOF, expected \d+ more bytes|(?:HeaderTooLarge|HeaderTooSmall|MetadataIncompleteBuffer)",
        r"InvalidHeaderDeserialization|Error while deserializing header|bad local file header",
        r"Unable to (?:open|read|synchronously open) (?:file|object|data).{0,30}(?:truncated|signature|corrupt)",
        r"file signature not found|MDB_(?:CORRUPTED|PAGE_NOTFOUND|INVALID|BAD_VALSIZE)",
        r"cannot reshape array of size \d+ into shape .{0,60}mmap|sample index \d+ is not present in (?:the )?\S+\.mds",
        # What apt says of a mirror that is being updated is matched below.
        r"(?!(?-i:Hash Sum mismatch))"
        r"(?:checksum|md5|sha256|crc32?c?|hash|etag|digest) ?(?:sum)?(?: value)?s? (?:mis-?match|error|failed|"
        r"verification|do(?:es)? not match|did(?: not|n't) match|invalid)",
        r"NonMatching(?:Checksum|Splits)\w*|failed (?:checksum|integrity)|HDF5.{0,30}(?:truncated|corrupt)",
        r"Unable to (?:read|load|parse|decode) (?:\S+ ){0,3}(?:data|channel|records?|images?|dataset)\b",
    ),
    _rule(
        "unusable-input",
        Cause.DATA,
        r"previously unseen (?:labels?|categor\w+|class\w*)|found unknown categories",
        r"DatasetGeneration(?:Cast)?Error|An error occurred while generating the dataset|DataFilesNotFoundError",
        r"EmptyDatasetError|ExpectedMoreSplits|UnexpectedSplits|CastError|SplitsNotFoundError",
        r"num_samples should be a positive integer|(?:dataset|dataloader|training set|train(?:ing)? data|input|"
        r"channel|directory|iterator|generator)s? (?:\S+ ){0,3}(?:is|was|are|were) empty",
        r"empty (?:dataset|training set|shard|batch|input file|data ?loader)|Found 0 (?:images|files|samples|records)",
        r"No (?:images|training (?:data|examples|samples|files)|data files|files matching|input files|samples|"
        r"records) (?:were |was |are )?(?:found|in|match)",
        r"(?:your )?input ran out of data|contains no (?:data|samples|records|files)|zero (?:samples|records|examples)",
        r"Couldn't find any class folder|Found no valid file|(?:input|label|data|feature|column|target|array|y|"
        r"X)s?\b.{0,20}contains? (?:NaN|null|inf|missing|non-?finite)|contains NaN, inf",
        r"\bNaNs?\W{1,3}(?:\w+ ){0,4}in (?:\S+ ){0,3}?(?:data(?:set)?\b(?!-)|labels?|samples?|"
        r"inputs?\b(?! tensor)|annotations?|images?|features?|targets?|columns?)\b",
        r"Found array with 0|inconsistent numbers? of samples|must be in (?:\[0, ?(?:1|num_class)|range of)",
        r"Labels? .{0,30}out of (?:range|bounds)|Check failed: .{0,60}(?:label|data)",
        r"columns? .{0,60}not in (?:the )?(?:dataset|index|data\w*)|not in index\b",
        r"(?:invalid|bad|malformed|unexpected) (?:\w+ )?(?:utf-?8|bytes?|characters?|row|line|record|sample|shard|"
        r"annotation|XML|bbox|bounding box)(?: (?:in|at|on|data)\b)",
        r"(?:Dataset|Split|Column|Feature)\w* .{0,60}(?:not found|doesn't exist|does not exist)(?! on the Hub)",
        r"(?:NaN|null|missing) values? (?:found )?in (?:the )?(?:\w+ )?(?:input|data|label|column|feature|dataset)s?",
        r"Invalid (?:class(?:es)?|labels?) (?:inferred|found|value)|Unknown label type|label set cannot be empty",
        r"(?:schema|column names?|columns?|feature names?) (?:mis-?match|don't match|do not match|inconsistent)",
        r"wrong number of (?:columns|fields)|Feature shape mismatch|(?:Missing|unexpected|unknown) column",
        r"token(?: id)?s? .{0,40}(?:out of (?:range|vocab)|exceeds? .{0,20}vocab|>= ?vocab)|bad token",
        r"(?:bad|poison) (?:data )?(?:batch|sample|shard|record|line|row)",
        r"xml\.etree\.\w+\.ParseError|bounding box.{0,40}(?:invalid|degenerate|positive height)",
        r"nan in (?:the )?(?:input|data|label|feature)s?\b|All bounding boxes should have positive",
    ),
    # What the shell of a launch script reports: its own folders and commands, not the input.
    _rule(
        "launch-script",
        Cause.USER_CODE,
        r"\b(?:ba|z|da|k)?sh: (?:line )?\d{0,6}:? ?.{1,300}: No such file or directory",
    ),
    _rule(
        "missing-input",
        Cause.DATA,
        r"No S3 objects found|NoSuchKey|NoSuchBucket|The specified (?:key|bucket) does not exist",
        r"HeadObject.{0,40}(?:not found|404)|\(404\) when calling the (?:Head|Get)|\b(?:s3|gs|S3Uri|bucket|S3 ?prefix|"
        r"manifest(?! for \S+:\S| unknown))\b.{0,200}"
        r"(?:does not exist|not found|doesn't exist|no such|is empty|invalid S3)",
        r"previously downloaded file/folder clashes|check your s3 objects|exist in (?:the )?s3",
        r"Data download failed.{0,30}(?:NoSuch|not ?found|404|could not download|no such|does ?n[o']t exist|invalid)",
        r"(?:train\w*|validation|input|data|test) channel .{0,40}(?:not (?:specified|provided|found)|missing|required|"
        r"empty)|missing (?:\w+ )?channel",
        r"(?:No such file or directory|FileNotFoundError|NotFoundError|does not exist|cannot find|not found"
        r"|could not find(?! a version)|failed to open(?: file)?)\b.{0,200}" + _DATA_PATH,
        r"\bno (?:\w+ )?(?:files?|data|objects?|images?|samples?) (?:were |was |is |are )?found (?:in|at|under|for)\b",
        _DATA_PATH + r"\S{0,150} (?:does not exist|not found|No such file|is missing|doesn't exist)",
        rf"(?:missing|could not find|cannot find|can't find|unable to find) (?:\w+ ){{0,2}}{_RECORD} (?:files?|"
        r"shards?|director\w+)|Caught FileNotFoundError in DataLoader",
    ),
    # ---- What a policy or a key refuses, whatever the status with which the service says so.
    _rule(
        "permission",
        Cause.USER_CODE,
        r"not authorized to perform|KMS\.|\binaccessible (?:\w+ )?KMS key|\bKMS (?:access|key)\b"
        r".{0,80}(?:denied|disabled|not (?:found|exist|accessible)|pending deletion)",
    ),
    # ---- Infrastructure around the job: nodes, network, storage, external servers.
    _rule(
        "node-failure",
        Cause.INFRASTRUCTURE,
        r"DUE TO NODE FAILURE|\bNODE_FAIL\b|NodeFail\w*|\bnode[- ]fail(?:ure|ed|s)?\b|\bNodeLost\b|under maintenance",
        r"health[- ]?checks? .{0,20}fail\w*|fail\w* .{0,10}health[- ]?checks?|NodeNotReady|NodeShutdown",
        r"NodeUnreachable|nodes? .{0,40}(?:not respond|unresponsive|not ready|unreachable|unhealthy|rebooted|"
        r"reboot(?:ed|ing) unexpectedly)",
        rf"\b{_MACHINE}(?: \S+){{0,2}} {_WENT}(?:\w+ )?{_DOWN}",
        rf"\b{_HOST}(?:,? (?:and )?{_HOST}){{0,20}},? (?:(?:and|is|are|was|were|went|has|have|had|just|suddenly) )*"
        r"(?:breaks? down|broke down|down\b|died|dead\b|unreachable|rebooted|disappeared|not respond)",
        r"node network is break ?down|\bnode it was running on is (?:dead|unavailable)\b|Invalid job credential",
        r"\b(?:node|host|machine|server)s?(?: \S+)? (?:break-?down|outage|crash(?:es|ed)?|loss|died|down)\b",
        r"lost (?:a |one |the |\d+ )?(?:node|host|machine|instance|executor)s?\b|ExecutorLost\w*|\b(?:marked|declared|"
        r"considered|presumed) (?:as )?(?:dead|lost|down|unhealthy|failed)\b|missed too many heartbeats",
        r"\bslurmd? daemon|slurm_script: No such|Raylet failed|lame workers|node breakdowns?\b|Kill task failed",
        r"(?<!tensorflow\.)Coordination ?Service(?! as cluster registration|.{0,60}DEADLINE).{0,80}"
        r"(?:heartbeat|unhealthy|lost|fail|error)|FailedMount|FailedAttachVolume",
        r"Lost (?:connection|contact|communication) (?:to|with)|lost communication with|Host (?:is down|unreachable)",
        r"(?:slurmctld|slurmd|munge).{0,40}(?:fail|error|down|contact|respon)|Communication connection failure",
        r"Job credential (?:expired|revoked)|Task launch .{0,60}failed on node|Unable to confirm allocation",
        r"Unable to contact slurm|Socket timed out on send/recv|Zero Bytes were transmitted",
        r"Protocol authentication error|Prolog (?:error|fail\w*|hung)|(?:launch|prolog|epilog) failed requeued",
        r"DUE TO (?:TIME LIMIT|PREEMPTION)|pre-?empted\b|pre-?emption|step creation.{0,30}(?:disabled|failed|busy)",
        r"JOB .{0,40}CANCELLED .{0,60}(?:PREEMPT|TIME LIMIT)|Slurm .{0,30}(?:fail|crash|bug|problem|went down)",
        r"\b(?:instance|node|pod|VM) (?:was |has been |is )?(?:evicted|reclaimed|interrupted|retired|recycled)",
        r"scheduled (?:for )?(?:maintenance|retirement)|maintenance (?:window|event|operation|downtime)",
        r"(?:power|cluster|network|datacenter|data ?centre|cooling|AZ|region|S3|storage|filesystem) outage",
        r"\b(?:ORTE|PRTE|prterun) (?:has lost|was unable|does not know how)|PRRTE daemon has unexpectedly failed",
        r"mpirun (?:was unable(?! to find the specified exec)|has lost)|daemon was unable to complete|PMIX ERROR",
        r"ssh: connect to host|kex_exchange_identification|Host key verification failed",
        r"(?:pod|node|agent|worker|raylet|actor|driver).{0,30}(?:heartbeat|missed too many)",
        r"heartbeats? .{0,20}(?:lost|missed|missing from node)|ActorDiedError|system rebooted",
        r"(?:Actor|Worker)\w*(?:Unavailable|Crashed)Error|(?:Node|Owner)DiedError|kernel panic|soft lockup",
    ),
    _rule(
        "fabric",
        Cause.INFRASTRUCTURE,
        r"Got completion (?:from peer|with error)|\bvendor err\b",
        r"NET/(?:IBP?|OFI|UCX|EFA)\b.{0,200}(?:error|fail|unreach|timed? ?out|port)|Got async(?: fatal)? event",
        r"ibv_\w+ (?:\w+ )?(?:failed|error)|IBV_WC_\w+ERR|transport retry count(?:er)? exceeded|RNR retry",
        r"unresponsive receiver|Unreachable remote|\b(?:IB|InfiniBand|RoCE|EFA|RDMA|NIC|HCA|network card|eth\d|links?|"
        r"ports?|switch(?:es)?)\b.{0,25}\b(?:flap\w*|link[- ]?down|down|degraded)\b",
        # A port or a link may also be one of the program's; that it failed counts only for the fabric's own names.
        r"\b(?:IB|InfiniBand|RoCE|EFA|RDMA|NIC|HCA|network card|eth\d|(?:link|port|switch)(?= (?:error|failure)))\b"
        r".{0,25}\b(?:fail\w*|errors?|timed? ?out)\b",
        r"\b(?:RETRY_EXC|RNR_RETRY_EXC|WR_FLUSH|REM_\w{2,8}|LOC_\w{2,8}|GENERAL|FATAL)_ERR\b|wc(?:->|\.)status",
        r"(?:async\w*|watchdog|ncclComm\w+Error|nccl(?:All|Reduce|Broadcast)\w*) .{0,120}unhandled system error",
        r"\bCQE?\b.{0,40}(?:error|syndrome)|bad completion|completion (?:queue )?(?:error|with status)|vendor syndrome",
        r"fi_\w+ (?:failed|error)|libfabric.{0,60}(?:error|fail)|UCX +(?:ERROR|FATAL)|Link DOWN",
        # NCCL guesses at it where a peer is gone: "due to a network error or a remote process exiting".
        r"(?<!due to a )(?<!there was a )"
        r"network (?:is )?(?:error|failure|fault|issue|problem|unreachable|outage|glitch|partition|breakdown|"
        r"instability|jitter)s?\b|No route to host|Network is (?:down|unreachable)|socketStartConnect",
        r"(?:socketPollConnect|socketProgress\w*|ncclSocket\w*).{0,80}(?:fail|error|timed? ?out|refused)",
    ),
    _rule(
        "shared-disk",
        Cause.INFRASTRUCTURE,
        rf"{_FULL}.{{0,80}}{_SHARED}|{_SHARED}(?:\S{{0,200}}+(?!\S))?.{{0,80}}{_FULL}",
    ),
    # The job's own disk, or its pod's share of one: the next job has the same size and fills it again.
    _rule(
        "full-disk",
        Cause.USER_CODE,
        _FULL,
        # PyTorch hides why a write failed; a memory error before it is the root.
        r"PytorchStreamWriter failed writing|\bunexpected pos \d+ vs \d",
        r"\bstorage exhausted\b|\b(?:insufficient|not enough|out of|lack of) "
        r"(?:(?:disk|storage|free|available|local|scratch|hard drive) )?space\b"
        r"|(?:\bephemeral\b|EmptyDir).{0,80}\bexceed\w* .{0,40}\blimit|exceeded its .{0,20}ephemeral"
        r"|\bephemeral-storage\b.{0,120}\bContainer \S+ was using\b",
    ),
    _rule(
        "storage",
        Cause.INFRASTRUCTURE,
        r"Disk quota exceeded|Read-only file system|file ?system .{0,20}read-?only|Stale (?:NFS )?file handle",
        r"Transport endpoint is (?:not connected|already)|Input/output error|Remote I/O error",
        r"(?:\[|\b)Errno (?:5|30|107|116|121|122)\b|ephemeral-storage|DiskPressure",
        r"EXT4-fs error|XFS .{0,30}(?:error|shutdown)",
        # Not a source file: "src/storage/storage.cc:48".
        r"\b(?:NFS|Lustre|GPFS|FSx|EFS|BeeGFS|WekaFS|file ?system|storage\b(?!/|\.cc|\.cpp|\.py)|fuse)\b.{0,60}"
        r"(?:not responding|evicted|unavailable|went down|down|hiccup|outage|connection lost|crash|failure|error|"
        r"timed? ?out|unresponsive|problem|issue)",
        r"LustreError|transport endpoint (?:shutdown|is)|mount(?:\.\w+)?(?: failed|: .{0,40}(?:error|fail|timed? out))",
        r"out of inodes|inodes? (?:quota|limit|exhaust)",
    ),
    _rule(
        "service",
        Cause.INFRASTRUCTURE,
        r"\bSlow ?Down\b|reduce your request rate|\bThrottl(?:ing|ed)\w*|Rate exceeded|RequestLimitExceeded",
        r"TooManyRequests|Too Many Requests|rate limit\w*|toomanyrequests|ProvisionedThroughputExceeded",
        r"BandwidthLimitExceeded|(?:HTTP(?:Error|/\d\.\d|S)?|status(?:[ _]?code)?|response|code|Server Error|Error|"
        r"error)\W{0,4}(?:code\W{0,3})?(?:429|500|502|503|504)\b|\b(?:429|500|502|503|504) (?:Client|Server) Error",
        r"\b50[0234] (?:Bad Gateway|Service|Gateway|Internal|Slow|Server)|(?<!['\"])Internal Server Error",
        r"Bad Gateway|Gateway Time-?out",
        r"Service ?Unavailable|\(ServiceUnavailable\)|(?<!Resource )temporarily unavailable|\bServerError\b",
        r"Could not connect to the endpoint URL|EndpointConnectionError|Connect(?:ion)?(?:Timeout|Closed)Error",
        r"(?:Connect|Read) ?timeout(?:Error)?\b|Read timed out|Connection was closed before we received",
        r"ResponseStreamingError|IncompleteRead|ProtocolError|ChunkedEncodingError|RemoteDisconnected",
        r"Max retries exceeded|NewConnectionError|RequestTimeout\b|RequestTimeTooSkewed|NameResolutionError",
        r"SSL(?:EOF)?Error|SSLZeroReturn|EOF occurred in violation of protocol|(?:SSL|TLS) handshake",
        r"curl(?:Code|: \(\d+\)|(?: returned)? error)|AWS_IO_|AWS_ERROR_|S3RetryableException|EOF during",
        r"Temporary failure (?:in name resolution|resolving)|\bnpm ERR! .{0,40}\bE(?:TIMEDOUT|CONN\w+|AI_AGAIN)\b",
        r"Name or service not known|getaddrinfo failed|nodename nor servname|\b50[0234] from .{0,9}hub",
        r"Server ?Disconnected|ClientConnector\w*|ClientPayloadError|ClientOSError|FSTimeoutError|NETWORK_CONNECTION",
        r"(?:requests|httpx|aiohttp|urllib3)\.(?:exceptions\.|client_exceptions\.)?\w*(?:Connect|Timeout|Read|"
        r"Protocol)\w*|(?:read|write) operation timed out|(?:down|up)load\w*\b.{0,60}\btimed? ?out",
        r"LocalEntryNotFound\w*|StatusCode\.UNAVAILABLE|exceeds? the (?:rate|request) limit|Unexpected response code|"
        r"\bdial tcp\b|\bUnavailable: |\"code\": ?(?:429|50\d)|"
        r"An error occurred \((?:5\d\d|InternalError|RequestTimeout)",
        # "the hub was down for some time"
        r"\b(?:hub|hugging ?face|github|S3|GCS|registry|proxy|mirror|API|service|website|endpoint|cloud|provider)s? "
        r"(?:\w+ )?(?:was|were|is|are|went|goes|has been|being) (?:\w+ )?(?:down|offline|unavailable|unreachable|"
        r"overloaded)",
        r"could not resolve host|UnknownHostException|\bDNS\b.{0,30}(?:fail|error|timeout)|We couldn't connect to",
        r"(?:couldn't|cannot|can't|could not|unable to|failed to) (?:connect|reach) (?:to )?(?:the )?(?:Hub|endpoint|"
        r"huggingface|https?:|S3|server|host|remote|master|scheduler|metadata)",
        r"Error when retrieving (?:token|credentials)|MetadataRetrievalError|ExpiredToken",
        r"(?:security )?token .{0,30}(?:expired|is expired)|\bRequest ?(?:has )?expired|CredentialRetrievalError|"
        r"ImagePullBackOff|ErrImagePull|Run initialization has timed out|wandb: (?:Network error|ERROR Error comm)",
        r"context deadline exceeded|Connection broken|InvalidChunkLength|RPC failed; curl|CannotPullContainer"
        r"(?!.{0,300}(?:denied|not found|not exist|manifest|no basic auth|unauthorized|forbidden|\b40[134]\b))",
        r"Consistency check failed: file should|(?-i:Hash Sum mismatch|Error: OS Error)|"
        r"fatal: unable to (?:access|connect to) (?!.{0,200}returned error: 4)",
        # A client's exception with the words of a server that is too slow or not there.
        r"(?-i:\b\w*(?:API|HTTP|Http|Gateway|Service|Server)\w*(?:Error|Exception)): .{0,600}?(?:try again(?! with)"
        r"|check back|exceeded the (?:maximum )?allowed time)",
        r"index files failed to download|\b(?:(?:up|down)load|https?:/\S{1,200}|requests?)\b.{0,80}"
        r"\bafter (?:\d+|multiple) (?:retries|attempts|tries)\b(?!.{0,200}\b40[0134]\b)",
    ),
    # ---- Non-finite numbers found by the program itself; before the exceptions that report them.
    _rule(
        "not-finite",
        Cause.DIVERGED,
        r"\bHighLossError\b|NanLossDuringTraining|Model diverged|training (?:has )?diverged",
        r"\bloss (?:has |is |was |went |became |becomes |goes |going |turned |turns |= ?|: ?|to |value )*(?:nan|"
        r"inf(?:inity)?|not finite|non-?finite|diverg\w*|explod\w*)\b",
        r"\b(?:nan|inf|non-?finite|infinite|not finite) (?:\w+ )?(?:loss|grad\w*|weights?|activations?|logits)\b",
        r"(?:loss|grad\w*(?: norm)?|logits|weights|output|tensor|activation)s? .{0,30}(?:contains?|had|has|is|are|"
        r"got|became|with|found) (?:\w+ )?(?:nan|inf|non-?finite)",
        r"found (?:nan|inf)|Unexpected result (?:nan|-?inf)|returned nan values",
        r"(?:minimum|min) loss scale|loss scale .{0,30}(?:minimum|min(?:imum)? reached|too small|hits|at 0|below)",
        r"scale already at minimum|Infinite gradient|gradient explo\w*|loss (?:explo|diverg|blew|blow)\w*|nan or inf",
        r"inf or nan|inf/nan|nan/inf|`inf`, `nan`|FloatingPointError|found invalid values: tensor|exploding gradient",
    ),
    # ---- Errors of the program, by messages that only such errors print.
    _rule(
        "program-fault-on-device",
        Cause.USER_CODE,
        r"device-side assert triggered|an? illegal (?:memory access|instruction)|misaligned address",
        r"unspecified launch failure|fail(?:ed)? to launch kernel",
        r"Memory access fault by GPU|HSA_STATUS_ERROR_(?:EXCEPTION|ILLEGAL|MEMORY)\w*",
        r"double free|\b(?:[cm]alloc|realloc|free|munmap_chunk|malloc_consolidate)\(\): |free invalid pointer",
        r"corrupted (?:size|double-linked|unsorted)|heap corruption|stack smashing",
        r"invalid (?:device function|device ordinal|configuration argument|resource handle|program counter)",
        r"no kernel image is available|not compatible with the current \w+ installation|kernel image is invalid",
        r"too many resources requested|IndexKernel|srcIndex < srcSelectDimSize|t >= 0 && t < n_classes",
        r"CU(?:DNN|BLAS)_STATUS_(?:BAD_PARAM|INVALID_VALUE|NOT_SUPPORTED|ARCH_MISMATCH|VERSION_MISMATCH)",
        r"driver (?:version )?.{0,30}(?:is insufficient|too old)|forward compatibility was attempted",
        r"PTX .{0,40}unsupported toolchain|named symbol not found",
        _XID + _XID_PROGRAM,
        r"\bSIGSEGV\b|Segmentation fault|\bSIGILL\b|\bSIGFPE\b|Floating point exception|Illegal instruction",
        r"killed by signal: (?:Segmentation|Floating|Illegal)",
    ),
    # The same image lacks it again; a driver is the machine's, and what ranks compile at once may be there next time.
    _rule(
        IMPORT,
        Cause.USER_CODE,
        r"\b(?:Import|ModuleNotFound)Error: "
        r"(?!.{0,300}(?:lib(?:cuda|nvidia)[\w-]*\.so|torch_extensions|/\.?cache/|/\.triton/|Errno|Input/output|Stale))",
    ),
    _rule(
        "program-fault",
        Cause.USER_CODE,
        r"shapes? .{0,60}(?:cannot|can't|can not|not|mis-?match|must match|incompatible)|size mismatch|a leaf Variable",
        r"sizes? of tensors? .{0,30}must|The size of tensor|Incompatible shapes|must match the (?:existing )?size",
        r"mat1 and mat2|Given (?:groups|transposed|input size|normalized_shape)|shape '\[.{0,60} is invalid",
        r"Expected (?:\d+D|input|target|more than 1 value|4-dim|3D|batch)\b.{0,80}|weight of size|loading state_dict",
        r"(?:Missing|Unexpected) key\(?s?\)? in state_dict|trying to initialize the default process group twice",
        # A library's own assertion in C++, except of a status that another library has returned.
        r"\bCheck failed: (?!.{0,200}(?:[a-z]Success|_SUCCESS|_OK)\b)|marked (?:as )?ready (?:only once|twice)",
        r"Expected all tensors to be on the same device|(?:should|must) be (?:on )?the same (?:device|dtype|type)",
        r"Input type \(|expected (?:scalar type|object of|dtype|m1 and m2|mat1 and mat2)|stack expects each tensor",
        r"not implemented for '|does not require grad|second time|modified by an inplace operation|can't convert cuda",
        r"finished reduction in the prior iteration|Cannot re-initialize CUDA|dimension (?:out of range|mismatch)",
        r"\bused a DP world size of \d+ but",
        r"outside the range|index out of (?:range|bounds)|out of bounds for dimension|unexpected key .{0,40}state_dict",
        r"one of the variables needed|newly initialized.{0,30}mismatch|result type .{0,30}can't be cast|Found dtype",
        r"No module named|cannot import name|unrecognized arguments|the following arguments are required|mixed dtype",
        r"\bs(?:run|batch): (?:fatal|error): .{1,60}(?:set by two|conflict|[Ii]nvalid|[Uu]nrecogni[sz]ed)",
        r"invalid choice:|ambiguous option|expected one argument|can't open file|No such option|Can't call numpy\(\)",
        r"Error: Missing (?:option|argument)|Invalid value for|Got unexpected extra argument|ModuleNotFound",
        r"(?m:command not found|: not found$)|not found in PATH|mpirun was unable to find the specified exec",
        r"(?:image|repository|tag) .{0,60}(?:does not exist|not found)|only Tensors of floating point",
        r"exec format error|Permission denied|undefined symbol|cannot open shared object|GLIBC(?:XX)?_",
        r"version .{0,30}not found \(required|No matching distribution|Could not find a version|ResolutionImpossible|"
        r"Could not open requirements file|\bUnable to load \w+ library\b|CUDA Setup failed despite",
        r"subprocess-exited-with-error|Failed building wheel|Error building extension|CUDA_HOME|not compiled with CUDA",
        r"CUDA is not available|Found no NVIDIA driver|Ninja is required|DistributionNotFound|VersionConflict",
        r"is required\b.{0,50}\bbut\b|\bbut (?:found|you have) \S+ ?[=\d]|requires? (?:the )?(?:package|library|`\w+`)",
        r"Please (?:install|run)\b|unexpected keyword argument|positional arguments?|object has no attribute",
        r"object is not (?:callable|iterable|subscriptable)|unsupported operand|is not defined\b|Trying to backward",
        r"referenced before assignment|has not been initialized|invalid literal for int|mismatch in shape",
        r"Detected mismatch between collectives|mismatch(?:ed)? collective|input\.size\(-1\)",
        r"Unsupported (?:backend|dtype|format|option)|not a valid (?:hyperparameter|model identifier|argument|JSON)",
        r"Additional (?:hyperparameters|properties)|No iterator has been registered|Invalid server type|"
        r"illegal char(?:acter)? sub-sequence|did not match any variant of",
        r"Failed to import|must import|(?:is|are) only supported when|bad request|hyperparameters? .{0,60}(?:invalid|"
        r"required|not allowed|unknown|missing|must)",
        r"InvalidArgumentError|InvalidConfig|ConfigAttributeError|ConfigKeyError|MissingMandatoryValue",
        r"Could not override|\bis not in struct\b|ValidationError|yaml\.\w+\.\w*Error|OmegaConf",
        r"hydra\.errors|Config(?:uration)?Error",
        r"ParameterError|batch[_ ]size .{0,80}(?:not (?:equal|divisible)|must be)|(?:not|must be) divisible by",
        r"world[_ ]size .{0,60}(?:not|must|divis)",
        r"AccessDenied|Access Denied|Forbidden|403 Client Error|Unauthorized|401 Client Error",
        r"Repository ?Not ?Found|GatedRepo|gated repo|RevisionNotFound|"
        r"(?<!Local)EntryNotFound",
        r"404 Client Error|returned error 40[0134]\b|manifest unknown|no basic auth credentials",
        r"no match\w* (?:\w+ )?for (?:platform|linux)|(?:pull |the resource is |image )(?:access )?denied",
        r"could not read (?:Username|Password) for|InvalidAccessKeyId|SignatureDoesNotMatch|NoCredentials",
        r"Unable to locate credentials|PartialCredentials",
        r"Invalid (?:user )?token|ParamValidationError|InvalidParameter|ValidationException",
        r"UnrecognizedClient|API key|wandb: ERROR(?! Error communicating)|failed archive status|Artifact upload failed",
        r"is not available in this region|Too many open files|received \d+ items of ancdata|ulimit|\bEMFILE\b",
        r"RLIMIT_NPROC|Resource temporarily unavailable|\blicen[cs]e (?:\w+ ){0,2}expired|Expired activation key|"
        r"\b(?:no valid|invalid|expired|set up a|register) licen[cs]e\b",
        r"\b(?:Value|Type|Key|Index|Attribute|Name|UnboundLocal|Assertion|Import|ModuleNotFound|Syntax|Indentation|"
        r"Tab|NotImplemented|ZeroDivision|Recursion|Permission|FileNotFound|IsADirectory|NotADirectory|FileExists|"
        r"Overflow|Lookup|Arithmetic|Pickling|BackendCompiler|Unsupported|Compilation)Error\b(?! in [A-Z]\w+\.__del__)",
        r"\b(?:StopIteration|argparse\.ArgumentError|TorchRuntimeError|InternalTorchDynamoError)\b",
        rf"{_ARGPARSE}|usage: \S+\.py(?!.{{0,2000}}{_ARGPARSE})",
        r"assertion .{0,80}failed|Fatal Python error: (?!Aborted|Bus error)\w",
        r"(?:checkpoint|model) .{0,60}(?:incompatible|architecture mismatch|not compatible)",
    ),
    # ---- A local error of NCCL's, often of its settings: the other ranks wait for this one until their clocks run out.
    _rule("nccl-system-error", Cause.UNKNOWN, r"ncclSystemError|unhandled system error"),
    # ---- Hangs: a timeout fired before any error.
    _rule(
        "collective-timeout",
        Cause.HANG,
        r"no heartbeat from|Hang ?Detect\w*|(?:not|no) (?:made |making |any )?progress (?:since|for|in)\b|sync timeout",
        r"detected by watchdog|heartbeat of its watchdog|stuck notify|synchronize timeout|task timeout|Wait ?timeout",
        r"(?:wait|notify|register|execution) (?:\S+ ){0,6}times? out\b|connect\(\) timed out|Timeout at NCCL work",
        r"collective (?:operation )?time(?:d )?out|wait\w*\(\w*\) time ?out",
        r"\bNPU .{0,80}error code is (?:107020|50704[68])\b",  # ACL: timeout of a task, or of the wait for it
        r"Watchdog caught|watchdog (?:\w+ )?(?:time ?out|timed out|got stuck|detected|hang\b)|Barrier time",
        r"WorkNCCL\((?!.{0,250}raised the following async exception: NCCL error)",
        r"Work(?:Gloo|HCCL|XCCL)\(.{0,200}time|ncclUniqueId from (?!.{0,200}Connection)|\bTimeout(?:Expired|Error)\b",
        r"HCCL.{0,40}time ?out|\bNCCL\W{1,3}(?:\w+ ){0,2}time(?:d )?-?out|without making progress|stuck for \d+",
        r"heartbeat monitor.{0,40}(?:timed? ?out|expired|not)|rank\w* .{0,30}(?:hung|hang)\b|waiting for clients",
        r"Heart ?beat .{0,30}(?:timeout|timed out|expired)|Socket ?time[sd]? ?out|blocked for more than \d+ sec",
        r"Timed out (?:after|waiting|initializ\w+|in barrier|while)|DataLoader timed out|\bdead-?lock\w*",
        r"timeout[- ]?(?:waiting|in|of|after|reached) |(?:operation|request|barrier|rendezvous|connection attempt|"
        r"allreduce|all_?reduce|broadcast|all_?gather|send|recv|init\w*|store)\w* (?:has )?time(?:d|s)? ?out",
        r"monitored ?barrier|store[- ]based[- ]barrier|client socket has timed out|Rendezvous ?Timeout\w*",
        r"waiting (?:for|on) (?:the )?(?:other )?(?:ranks?|workers|peers?|nodes|remainder)\b|DEADLINE_EXCEEDED",
        r"Stalled (?:tensor|rank|op|process)\w*|StallInspector|Deadline ?Exceeded|hang(?:s|ing)? detected",
        r"submitted to be reduced, gathered or broadcast|hung (?:job|rank|process|task|worker)|job (?:was |is )?hung",
        r"no (?:new )?(?:log|output|step|iteration)s? (?:for|in|since) (?:the (?:last|past) )?\d+",
    ),
    # ---- Errors that other ranks print when one is gone, or network errors.
    _rule(
        "peer-gone",
        Cause.INFRASTRUCTURE,
        r"client socket has failed|failed to connect to (?:any|the|all|\S+:\d)|remote process exited",
        r"ncclRemoteError|ncclInternalError|NCCL.{0,40}internal error|ncclProxy\w*",
        r"Connection (?:reset|closed|aborted|refused|lost|dropped|timed out|error)|connection abort",
        r"Connection(?:Reset|Refused|Aborted)?Error|Broken ?Pipe\w*|Rendezvous(?:Connection|Closed|State)?Error",
        r"RendezvousGracefulExit\w*|failed to recv|recvValue failed|sendBytes failed|recvBytes failed|DistNetworkError",
        r"DistStoreError|connection to the C10d store|C10d store .{0,30}fail|TCPStore.{0,60}(?:fail|error)",
        r"Gloo connect\w* .{0,60}(?:fail|error)|store->get\(\)|connectFullMesh|gloo/transport|HorovodInternalError",
        r"process group .{0,30}aborted|communicator was aborted",
        r"NCCL communicator .{0,30}abort|UnavailableError|\bUNAVAILABLE:|failed to connect to all addresses",
        r"Connection to \S+ (?:\S+ )?(?:closed|lost|reset|refused|dropped)|closed by (?:the )?(?:remote )?(?:host|"
        r"peer)\b|Connect(?:ion)? fail(?:ed|ure)|connection is (?:shut down|closed|lost)|grpc error",
        r"Proxy Service \d+\] Failed|Failed to execute operation \w+ from rank|NET/\w+.{0,60}completed with error",
        r"Socket closed|socket (?:error|failure)|peer (?:\S+ ){0,4}(?:closed|gone|exited|disconnect\w*)",
        r"Transport (?:closed|error)|Stop_waiting response is expected|function error: Hccl\w+",
    ),
    # What the watchdog says of both: the error that it prints next tells which.
    _rule("collective-failed", Cause.HANG, r"operations? have failed or timed out"),
    _rule("peer-failed", Cause.UNKNOWN, r"Horovod has been shut ?down"),
    # ---- Vague words and operators' notes. From here on no rule overrides the program's own report.
    _vague_rule(
        "device-note",
        Cause.HARDWARE,
        rf"\b{_PART}(?: \S+){{0,3}} (?:crash(?:ed|es)?|died|dies|dead|broken?|breaks?|failed|fails|failure|faulty|"
        r"fault|defective|burn\w*|malfunction\w*|disappeared|vanished|gone|missing|errors?|down)\b",
        r"\b(?:faulty|broken|bad|dead|defective|failed|failing|flaky|lost|damaged|crashed|unhealthy|problematic) "
        rf"(?:\w+ )?{_PART}\b",
        r"CUDA error: (?:unknown error|CUDA-capable device\(s\) is/are busy)",
        r"\b(?:instability|degradation|degraded|anomal\w+) (?:\S+ ){0,5}GPUs?\b",
        r"all CUDA-capable devices are busy or unavailable|CUDA driver error|cudaErrorUnknown",
        r"CUDA_ERROR_(?:UNKNOWN|NOT_INITIALIZED|SYSTEM\w*)|Unexpected error from cudaGetDeviceCount",
        r"\b(?:shut|power)\w{0,4} (?:\w+ )?(?:down|off) (?:\w+ ){0,2}(?:desktop|computer|PC|workstation)\b",
        r"shutdowns? (?:the )?(?:computer|PC|desktop)|power (?:fluctuation|spike|surge)s?|sudden reboots?",
        r"\b(?:dies|died|crash(?:es|ed)) and reboot(?:s|ed)\b",
        r"\breboot(?:s|ing)? (?:after|at|during|when|while) .{0,30}(?:epoch|iter|train)|PCIe Bus Error|single-bit ECC",
        r"\bECC\b|\bhardware\b(?! limit)|Ascend.{0,40}(?:error|fault)|NPU .{0,20}(?:error|fault)",
        r"\b(?:PC|desktop|computer|workstation)\b.{0,30}\b(?:shut\w* ?(?:down|off)|power\w* off|restarts|reboots)\b",
    ),
    # A bad device or disk prints these, and so do too little memory or space, a wrong version or setting, and a bug.
    _vague_rule(
        "undecidable",
        Cause.UNKNOWN,
        r"CU(?:DNN|BLAS)_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED|MAPPING_ERROR)|ncclUnhandledCudaError",
        r"no CUDA-capable device is detected|No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE|No devices were found",
        r"Driver/library version mismatch|CUDA unknown error\b|CUDA_ERROR_LAUNCH_FAILED|CUDA driver init\w+ failed",
        r"miopenStatus\w+Error|No neuron device available|number of available NeuronCores|TPU initialization failed",
        r"JSONDecodeError: Expecting value: line 1 column 1|\bDevice acquire failed\b",  # the latter Gaudi's
        r"unhandled cuda error|\bactor (?:is dead because its worker process has )?died\b|A worker died or was killed",
    ),
    _vague_rule(
        "capacity-note",
        Cause.CAPACITY,
        r"(?<!disk )\bquotas?\b|\bcapacity .{0,40}(?:exceed|exhaust|crunch|wait|insufficient|unavailable)\w*",
        r"(?:waiting|queued?) for (?:\w+ )?(?:capacity|GPUs?|instances?|resources)",
        r"(?:could not|couldn't|cannot|unable to|can't|failed to) (?:find|get|obtain|acquire|allocate|launch) "
        r"(?:\w+ ){0,3}(?:GPUs|instances?|nodes|machines)",
    ),
    _vague_rule(
        "memory-note",
        Cause.OOM,
        r"(?:eat\w*|consum\w*|us(?:es|ing|ed)|fill\w*) .{0,20}(?:RAM|memory)\b.{0,40}(?:kill|crash|full|until)",
        r"\bOOM(?:s|ed|ing)?\b|memory leak\w*|[Pp]in memory thread exited|\bout of (?:RAM|VRAM|mem)\b|\bshm\b",
        r"(?:RAM|memory) (?:is |was |got |usage )?(?:full|exhausted|growing|grew|keeps)",
    ),
    _vague_rule(
        "hang-note",
        Cause.HANG,
        r"\b(?:hang\w*|hungs?|stuck\w*|stucks?|nothing happens|freez(?:es?|ing)|froze|frozen(?! layer| param| weight)|"
        r"stalls?|stalled|unresponsive|watchdog|wedged?|idles|idle forever)\b",
        r"stops? (?:at|responding|making)|no (?:more |further |new )?(?:output|progress|response|logs?)\b",
        r"\bGPUs?\b.{0,40}\b(?:locked|pinned|stay\w*|sit\w*|remain\w*) at \W?(?:0|100)\b|\bstops? (?:right )?there\b",
        r"never (?:finish|return|end|complete|start)\w*|util\w* .{0,30}(?:always |stay\w* |stuck |at |is |remains? |"
        r"fell to |drops? to |dropped to |to )+(?:0|100) ?%",
        r"(?:0|100) ?% (?:GPU )?util\w*|wait\w*\b.{0,30} (?:forever|indefinitely)|endless(?:ly)?",
        r"does(?: not|n't) (?:proceed|continue|progress)|\btime[ds]?[ -]?outs?\b(?! ?[=:] ?[']?\d)",
    ),
    _vague_rule(
        "data-note",
        Cause.DATA,
        rf"\b(?:corrupt\w*|truncated|missing|bad|broken|wrong|invalid|nois\w*) (?:\S+ ){{0,3}}{_RECORD}\b",
        r"\b(?:malformed|corrupt\w*|truncated|undecodable|unreadable|garbled|zero-byte)\b|(?:unknown|"
        r"unrecogni[sz]ed) (?:file )?format",
        r"(?:not able to|unable to|cannot|can't|could not|couldn't) (?:play|open|read|decode|"
        r"parse) (?:\S+ ){0,5}(?:files?|images?|audio|videos?|wavs?)\b",
        rf"\b{_RECORD}\b.{{0,90}} (?:is|are|was|were) (?:\w+ )?(?:causing|wrong|bad|broken|invalid|corrupt\w*|empty|"
        r"incorrect|damaged|the (?:problem|culprit|issue|cause))\b",
        r"\b(?:empty|NaN|null|none|missing|blank|illegal|mistyped|duplicated?) (?:\w+ )?(?:values?|rows?|strings?|"
        r"entr(?:y|ies)|"
        r"cells?|lines?|items?|elements?|fields?|labels?|samples?|images?|texts?|records?|annotations?|bbox\w*)\b",
        rf"\b(?:mistyped|mislabell?ed|non-?valid|unlabell?ed) (?:\S+ )?(?:{_RECORD}|entries|rows)\b",
        r"\b(?:training set|data(?:set)?|samples?|rows?|prompts?|labels?|annotations?|sentences?|"
        r"captions?)\b.{0,40}\b(?:is|are|was|were) "
        r"(?:\w+ )?(?:empty|null|none|blank|NaN|missing|invalid|wrong|duplicated?)\b",
        rf"(?:caused by|because of|due to|problem (?:is|was)|issue (?:is|was)) (?:\S+ ){{0,4}}{_RECORD}\b",
        r"\b(?:samples?|images?|labels?|annotations?|documents?|training set)\b.{0,50}\W?\bNaNs?\b|\b(?:samples?|"
        r"images?|labels?|annotations?|records?|documents?|training set)\b.{0,40}\b(?:not|n't|no) (?:\w+ ){0,2}valid\b",
        r"NaN .{0,60}\bdata\b|Data download failed|\bS3 objects? .{0,30}could not",
    ),
    _vague_rule(
        "container-exit",
        Cause.USER_CODE,
        r"\bexited with (?:non-zero exit )?code:? [12]\b|\bexitCode: [12]\b|non-zero exit code: [12]\b",
    ),
    _vague_rule(
        "node-note",
        Cause.INFRASTRUCTURE,
        rf"\b(?:workers?|pods?)(?: \S+){{0,2}} {_WENT}(?:\w+ )?{_DOWN}|lost (?:a |one |the |\d+ )?workers?\b",
        r"(?:fail\w*|error) (?:to |while |when |during )?(?:up|down)load\w*|(?:up|down)load\w* (?:has |have )?fail\w*",
        rf"(?<!job )\b(?:{_NODE}|{_HOST}(?!-\d))\b.{{0,60}}\b(?:break(?:s|ing)? ?down|broke down|breakdown|goes down|"
        rf"went down|"
        r"shut ?down|off-?line|fail(?:ure|ed|s)|issue|problem|drained|replaced?|swap\w*|excluded|removed)\b",
        r"\b(?:replac\w+|remov\w+|exclud\w+|swap\w*|drain\w*|cordon\w*|bad|faulty|broken|flaky|problematic) "
        rf"(?:\S+ ){{0,2}}(?:{_NODE}|{_HOST})\b",
        r"\b(?:network(?! (?:train|architect|weight|output))|NCCL|infiniband|interconnect|slurm|storage|"
        r"cluster|filesystem|ssh|cloud|infra\w*)\b.{0,40}"
        r"\b(?:error|issue|problem|fail\w*|glitch|crash\w*|trouble|down|unstable|flaky|broken)",
        r"\btask \d+: (?:Terminated|Exited)|CANCELLED (?:AT|BY)|Terminated\b(?! by s| with)|\bmaintenance\b",
        r"\bNCCL error",
    ),
    _vague_rule(
        "mistake-note",
        Cause.USER_CODE,
        r"\b(?:bugs?|typos?|mis-?configur\w*|wrong (?:\w+ )?(?:config\w*|path|argument|flag|version|setting)|"
        r"forgot(?:ten)?|incorrect (?:config\w*|path|argument|setting))\b",
    ),
    _vague_rule(
        "divergence-note",
        Cause.DIVERGED,
        r"\b(?:loss|grad\w*)\b.{0,40}\b(?:spik\w+|diverg\w+|explo\w+|blow\w*|blew|NaNs?|infinite|unstable|"
        r"instabilit\w+)\b",
        *_list_not_finite(r"(?:loss|grad(?:ient)?[ _]?norm|gnorm)"),
        r"\bLoss is Infinity\b|\bNaNs?\b|training (?:is |was |became )?(?:unstable|diverging)|instabilit(?:y|ies)",
    ),
)

# What a traceback that shows the loading of a checkpoint ends with if the file is damaged.
DAMAGE = _rule(
    DAMAGED_CHECKPOINT,
    Cause.DAMAGED_CHECKPOINT,
    RULES[[rule.name for rule in RULES].index(DAMAGED_CHECKPOINT)].pattern.text,
    r"invalid load key|UnpicklingError(?!: Weights only load failed\. This file can still)|Ran out of input"
    r"|pickle data was truncated|unexpected EOF|\bEOFError\b",
    r"BadZipFile|not a zip file|zlib\.error|Error -\d while decompressing|unpack\w* requires a buffer|CRC check failed",
    r"(?:Unable|unable) to (?:synchronously )?open (?:file|object)|truncated file|file signature not found",
    r"(?:unpack\w*|msgpack)\b.{0,60}(?:incomplete|not enough|extra|invalid|buffer)|OutOfData|ExtraData|FormatError",
    r"Unexpected end of (?:data|file|input|JSON)|JSONDecodeError|UnicodeDecodeError|(?:invalid|bad) magic",
    r"Compressed file ended before|premature end|DataLoss|Data loss|corrupt\w*|truncated|checksum|crc\b",
)

SERVICE = next(rule for rule in RULES if rule.name == "service")
# How a log without an error may end.
NAN_LOSS = _vague_rule("not-finite", Cause.DIVERGED, *_list_not_finite(r"loss\w{0,20}"))

# The end of a traceback that shows the reading of the input.
RECORDS = _rule("unreadable-input", Cause.DATA, r"\bJSONDecodeError\b")
# The end of a traceback that shows the reading of a settings file: the user's own file, and no input.
SETTINGS = _rule("unreadable-settings", Cause.USER_CODE, r"\b(?:\w*Decode|YAML|Parser|Scanner)Error\b")

# A timeout of ranks that wait for one which still reads its input: it comes again if the reading takes as long.
TIMEOUT_WHILE_READING = _vague_rule("timeout-while-reading", Cause.UNKNOWN, r"(?!)")

# Rules that match what the other ranks print when one has failed: the root error may stand elsewhere.
CASCADES = ("collective-timeout", "collective-failed", "peer-gone", "peer-failed", "fabric", "service", "storage",
            "program-fault-on-device", "node-failure", "nccl-system-error")  # fmt: skip

# Tried if no rule matches: an unknown exception, or the wrapper that SageMaker puts around any exit.
FALLBACKS: tuple[SymptomRule, ...] = (
    _vague_rule(
        "some-exception",
        Cause.USER_CODE,
        r"\b(?!(?:\w{1,60}\.){0,8}(?:Algorithm|ExecuteUserScript|Client|ChildFailed|CalledProcess|DistBackend)Error|"
        r"UnexpectedStatus|Signal|ProcessExited|ProcessRaised)[A-Za-z_][\w.]{0,60}(?-i:Error|Exception|"
        r"Interrupt)\b\W{0,3}.{0,40}",
        r"\b[a-z_][\w.]{0,60}\.(?:exc|exceptions?|errors?)\.(?-i:[A-Z])\w+|Traceback \(most recent call last\)",
        r"executable file not found|CannotStartContainer|\b(?!c10)[a-z]\w{1,30}::Error\b|(?<![\w.])(?-i:Exception): \S"
        r"|\bfailed with exception\b|\bthread '.{1,60}' panicked at\b",
    ),
    _vague_rule("bar-never-moved", Cause.HANG, r"\b0%\|.{0,40}\| 0/\d+ \[00:00<\?"),
)
WRAPPERS: tuple[SymptomRule, ...] = (
    _vague_rule("node-died", Cause.INFRASTRUCTURE, r"\b(?:its|actor's) node (?:\w+ ){0,2}(?:died|preempted|terminate)"),
    _vague_rule(
        "script-failed",
        Cause.USER_CODE,
        r"AlgorithmError|ExecuteUserScriptError|CalledProcessError|ProcessRaisedException",
        r"uncaught exception during train",
    ),
    _vague_rule("loader-worker", Cause.OOM, r"DataLoader worker .{0,30}exited unexpectedly(?! with exit code)"),
    _vague_rule("request-refused", Cause.USER_CODE, r"\bClientError\b"),
)
# Tried last: a thing is named near a word for a problem.
LOOSE: tuple[SymptomRule, ...] = (
    _vague_rule(
        "device-trouble",
        Cause.HARDWARE,
        *_near(
            rf"(?<!multi-)(?<!multi )(?<!on )(?:GPUs?{_NOT_A_USE}|graphics cards?|cards?|NVML|nvidia-smi|NVLinks?|"
            r"hardware)"
        ),
    ),
    _vague_rule("room-trouble", Cause.CAPACITY, *_near(r"(?:resources?|reservations?|spot instances?|allocations?)")),
    _vague_rule("memory-trouble", Cause.OOM, *_near(r"(?:memory|[DV]?RAM|swap|shm|OOM)")),
    _vague_rule(
        "no-movement",
        Cause.HANG,
        r"\bno response\b|\bnot? (?:\w+ )?(?:respond|moving|advanc)\w*|\bwait(?:s|ing|ed)?\b|\bblocked\b|\bidle\b|"
        r"\bsits?\b|timed? ?out|timeouts?",
    ),
    _vague_rule(
        "data-trouble",
        Cause.DATA,
        *_near(r"(?:data ?sets?|samples?|images?|shards?|labels?|annotations?|parquet|jsonl?|csv|tfrecords?|corpus)"),
    ),
    _vague_rule(
        "world-trouble",
        Cause.INFRASTRUCTURE,
        *_near(
            rf"(?:{_NODE}|clusters?|networks?|connections?|sockets?|services?|storage|disks?|mounts?|prox(?:y|ies)|DNS|"
            r"slurmd?|scheduler|kubernetes|k8s|ssh|internet|buckets?|S3|GCS|(?:down|up)loads?|hub|cloud)"
        ),
    ),
    _vague_rule(
        "program-trouble",
        Cause.USER_CODE,
        r"\b(?:value|type|key|index|attribute|name|import|assertion|syntax|module|config\w*|argument|"
        r"parsing) ?errors?\b|\b(?:unsupported|incompatib\w+|mis-?match\w*|not supported|undefined)\b",
        *_near(
            r"(?:scripts?|arguments?|parameters?|hyperparameters?|versions?|packages?|dependenc(?:y|ies)|config\w*|"
            r"shapes?|dtype|containers?)"
        ),
    ),
)
