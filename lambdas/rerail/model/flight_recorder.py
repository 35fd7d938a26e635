"""Find the rank that the others wait for, from the dumps of torch's flight recorder: one of each rank of a hung job.

Each rank's oldest operation that is not completed names the ranks it waits for: those that neither completed it nor
have it as their own oldest. Who is waited for, and waits for nobody, is the culprit: it does not enter the operation,
or its GPU does not finish one that its peers have completed. A dump is a pickle; only plain data is read.
"""

import json
import pickletools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BYTES_LIMIT = 32 << 20
# Opcodes of a pickle, also where it refers to the same values again and again; 10,000 operations have half of them.
MOST = 3_000_000
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {*_CONSTANTS, "BININT1", "BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT2", "LONG1", "BINFLOAT"}
# How many values an opcode takes from the stack; 0: those since the mark.
_TAKEN = {"APPEND": 1, "SETITEM": 2, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPENDS": 0, "SETITEMS": 0, "TUPLE": 0}
_P2P = re.compile(r"(?:\w+:)?(?:send|recv) (\d{1,6})(?:->|<-)(\d{1,6})")

OperationKey = tuple[str, int, str | frozenset[int]]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a process group, as one rank has recorded it."""

    group: str
    # The global ranks of the group; empty where the dump does not name them.
    ranks: tuple[int, ...]
    # Counts the group's collectives, or its transfers between two ranks.
    number: int
    name: str
    is_completed: bool
    # Whether its kernel is known to run; torch looks only where timing is switched on.
    is_started: bool
    # What the script calls the group, such as TENSOR_MODEL_PARALLEL_GROUP; may be empty.
    description: str = ""
    # The two global ranks of a transfer; empty for a collective.
    pair: frozenset[int] = frozenset()

    @property
    def key(self) -> OperationKey:
        """Return what the records of the same operation share on all of its ranks."""
        return self.group, self.number, self.pair or self.name

    def __str__(self) -> str:
        called = f" ({self.description})" if self.description else ""
        return f"{self.name} {self.number} of group {self.group}{called}"


@dataclass(frozen=True, slots=True)
class RankDump:
    """The operations that a rank has recorded, oldest first."""

    operations: tuple[Operation, ...]
    # By group, the number of the newest operation that it completed.
    completed: Mapping[str, int]
    # The oldest operation that is not completed.
    oldest: Operation | None
    # By operation, whether it is completed.
    states: Mapping[OperationKey, bool]
    # The groups that transfer between two ranks too.
    mixed: frozenset[str]

    @classmethod
    def make(cls, operations: tuple[Operation, ...], completed: Mapping[str, int]) -> "RankDump":
        """Return the dump of these operations, with what is looked up once for each other rank."""
        oldest = next((operation for operation in operations if not operation.is_completed), None)
        states = {operation.key: operation.is_completed for operation in operations}
        return cls(operations, completed, oldest, states, frozenset(o.group for o in operations if o.pair))


def read_dump(content: bytes) -> RankDump:
    """Return the dump in a pickle or in JSON; raise ValueError with the reason if it is neither, or not plain data."""
    if len(content) > BYTES_LIMIT:
        raise ValueError(f"it has too many bytes, at most {BYTES_LIMIT:,} are read")
    try:
        table = json.loads(content) if content[:1] == b"{" else _load_plain(content)
        return _parse_dump(table)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is no dump of torch's flight recorder: {type(error).__name__}: {error}") from error


def _load_plain(content: bytes) -> Any:
    """Return the data of a pickle, tuples as lists and each key as text; nothing that calls or imports is read."""
    stack, marks, memo = list[Any](), list[int](), dict[Any, Any]()
    for count, (opcode, value, _) in enumerate(pickletools.genops(content)):
        name = opcode.name
        if name in _VALUES:
            stack.append(_CONSTANTS.get(name, value))
        elif name.endswith("BINGET"):
            stack.append(memo[value])
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if value is None else value] = stack[-1]
        elif name.startswith("EMPTY_"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            marks.append(len(stack))
        elif name in _TAKEN:
            start = len(stack) - _TAKEN[name] if _TAKEN[name] else marks.pop()
            values = stack[start:]
            stack[start:] = [values] if name.startswith("TUPLE") else []
            if name.startswith("APPEND"):
                stack[-1].extend(values)
            elif name.startswith("SETITEM"):
                stack[-1].update(zip(map(_parse_text, values[::2]), values[1::2], strict=True))
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"its pickle has {name}, which plain data does not need")
        if count > MOST:
            raise ValueError(f"its pickle has too many opcodes, at most {MOST:,} are read")
    return stack[-1]


def _parse_text(value: Any) -> str:
    """Return a name, on one line; raise TypeError for nested values, whose text may be unbounded."""
    if not isinstance(value, str | int):
        raise TypeError(f"{type(value).__name__} is not a name")
    return " ".join(str(value)[:100].split())


def _parse_dump(table: Any) -> RankDump:
    ranks = {_parse_text(name): group["ranks"] for name, group in table["pg_config"].items()}
    if 20 * len(table["entries"]) + sum(map(len, ranks.values())) > MOST:
        raise ValueError("it has too many operations, or groups of too many ranks")
    groups = {name: tuple(map(int, json.loads(r) if isinstance(r, str) else r)) for name, r in ranks.items()}
    entries = sorted(table["entries"], key=lambda entry: int(entry["record_id"]))
    status = table.get("pg_status") or {}
    names = {_parse_text(entry["pg_id"]): _parse_text(entry["process_group"][0]) for entry in entries}
    if len(status) == len(groups) and all(name.isdecimal() for name in groups):
        # Both are numbered in the order in which the groups were made.
        names |= dict(zip(sorted(status, key=int), sorted(groups, key=int), strict=True))
    completed = {names[i]: int(s["last_completed_collective"]) for i, s in status.items() if i in names}
    for entry in entries:
        if not _parse_text(entry["profiling_name"]).startswith("nccl:"):
            # gloo's state comes late; the call before the newest one has returned.
            group = _parse_text(entry["process_group"][0])
            completed[group] = max(completed.get(group, -1), int(entry.get("op_id", entry["collective_seq_id"])) - 1)
    return RankDump.make(tuple(_parse_operation(entry, groups, completed) for entry in entries), completed)


def _parse_operation(
    entry: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]], completed: Mapping[str, int]
) -> Operation:
    group, description = map(_parse_text, entry["process_group"])
    name = _parse_text(entry["profiling_name"])
    ranks, transfer = groups.get(group, ()), _P2P.fullmatch(name)
    pair = frozenset(ranks[int(index)] for index in transfer.groups()) if transfer else frozenset()
    number = int(entry["p2p_seq_id"] if transfer else entry["collective_seq_id"])
    # Not every backend keeps the state up to date.
    is_completed = entry["state"] == "completed" or int(entry.get("op_id", number)) <= completed.get(group, -1)
    return Operation(group, ranks, number, name, is_completed, entry["state"] == "started", description, pair)


def find_culprits(dumps: Mapping[int, RankDump]) -> dict[int, str]:
    """Return the ranks that the others wait for, each with the reason in words; empty where no rank stands out."""
    waits = {rank: _list_awaited(rank, dump.oldest, dumps) for rank, dump in dumps.items()}
    culprits: dict[int, str] = {}
    for rank in sorted({awaited for ranks in waits.values() for awaited in ranks} | waits.keys()):
        waiting = sorted(other for other, ranks in waits.items() if rank in ranks)
        if not waits.get(rank) and (why := _explain(rank, waiting, dumps)):
            culprits[rank] = why
    return culprits or _find_mismatches(dumps)


def _list_awaited(rank: int, operation: Operation | None, dumps: Mapping[int, RankDump]) -> set[int]:
    """Return the ranks that neither completed the operation nor are held up by it themselves."""
    if operation is None:
        return set()
    # Of gloo only the first group is known: it has all ranks.
    members = set(operation.pair or operation.ranks or (dumps if operation.group == "0" else ())) - {rank}
    return {member for member in members if member not in dumps or not _takes_part(dumps[member], operation)}


def _takes_part(dump: RankDump, operation: Operation) -> bool:
    return _has_completed(dump, operation) or (dump.oldest is not None and dump.oldest.key == operation.key)


def _has_completed(dump: RankDump, operation: Operation) -> bool:
    if operation.key in dump.states or operation.pair:
        return dump.states.get(operation.key, False)
    # Of a group that transfers too, torch counts both kinds in one number.
    return operation.group not in dump.mixed and dump.completed.get(operation.group, -1) >= operation.number


def _explain(rank: int, waiting: list[int], dumps: Mapping[int, RankDump]) -> str:
    """Return why a rank that waits for nobody holds up the others; "" if it does not."""
    dump = dumps.get(rank)
    own = dump.oldest if dump else None
    if own is not None:
        ahead = sorted(other for other in dumps if other in (own.ranks or dumps) and _has_completed(dumps[other], own))
        inside = _find_ranks_in(own, dumps)
        # As many ranks must be further as are not: the record of a single one may be wrong.
        if not ahead:
            started = [other for other, there in inside.items() if there.is_started]
            is_late = len(inside) <= 2 * len(started) and not own.is_started
            return f"its GPU has not started {own}, {_format_ranks(started)} have" if is_late else ""
        if own.name.startswith("nccl:"):
            is_behind = len(inside) <= len(ahead)
            return f"its GPU has not finished {own}, which {_format_ranks(ahead)} completed" if is_behind else ""
        # Of another backend the state only comes late: the rank has left what its peers have completed.
    if not waiting:
        return ""
    # Most of them wait in the operation itself, others in a later one.
    awaited, _ = Counter(dumps[other].oldest for other in waiting).most_common(1)[0]
    waiting = [other for other in waiting if (oldest := dumps[other].oldest) and awaited and oldest.key == awaited.key]
    if dump is None:
        return f"it left no dump; {_format_ranks(waiting)} wait for it in {awaited}"
    last = f"; its last was {dump.operations[-1]}" if dump.operations else ""
    return f"it has not entered {awaited}, where {_format_ranks(waiting)} wait for it{last}"


def _find_ranks_in(operation: Operation, dumps: Mapping[int, RankDump]) -> dict[int, Operation]:
    """Return the ranks whose oldest operation this is, each with its own record of it."""
    oldest = {rank: dump.oldest for rank, dump in sorted(dumps.items())}
    return {rank: own for rank, own in oldest.items() if own and own.key == operation.key}


def describe_unfinished(dumps: Mapping[int, RankDump]) -> str:
    """Return an operation that all of its ranks have entered and none has finished, in words; "" if there is none."""
    for dump in dumps.values():
        inside = _find_ranks_in(dump.oldest, dumps) if dump.oldest else {}
        if dump.oldest and all(not _list_awaited(rank, own, dumps) for rank, own in inside.items()):
            return f"{_format_ranks(list(inside))} entered {dump.oldest}, and none has finished it"
    return ""


def _find_mismatches(dumps: Mapping[int, RankDump]) -> dict[int, str]:
    """Return the ranks that entered another collective than most ranks of their group at the same place."""
    culprits: dict[int, str] = {}
    pending = {rank: dump.oldest for rank, dump in dumps.items() if dump.oldest and not dump.oldest.pair}
    for group, number in {(operation.group, operation.number) for operation in pending.values() if operation}:
        names = {rank: o.name for rank, o in pending.items() if o and (o.group, o.number) == (group, number)}
        (usual, count), *others = Counter(names.values()).most_common()
        if others and count > others[0][1]:
            culprits |= {
                rank: f"it entered {name} {number} of group {group}, most ranks {usual}"
                for rank, name in sorted(names.items())
                if name != usual
            }
    return culprits


def _format_ranks(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
