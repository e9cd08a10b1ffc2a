"""Fields that a plan has in addition to a prediction: one table for options, JSON bodies and OpenAPI."""

from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.request.field_types import (
    FLAG,
    Field,
    choice,
    number,
    table,
    whole,
)
from kernelcast.runtime.request.fields import DATA
from kernelcast.walltime.fields import SHARE, duration

MODES = ("async", "sync", "memory")
HANG_S, CRASH_S = 600.0, 30.0
"""PyTorch's time-out of NCCL, which ends a hang; what a launcher needs to notice a process that ended."""
HANG_SHARE = 5_948 / (5_948 + 38_236)
"""Implicit failures among all of ByteDance's in three months (arXiv 2509.16293)."""
DETECTION_S = HANG_SHARE * HANG_S + (1 - HANG_SHARE) * CRASH_S
REPLACEMENT_S, REPAIR_S = 180.0, 86_400.0
NODE_STORAGE_BYTES_PER_S = 1e9
"""Llama 3's storage kept 2 TB/s for 2,048 nodes (arXiv 2407.21783), BLOOM's wrote 2.3 TB in 40 s from 48."""
_BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "B": 1}
RATE = replace(
    number(
        1e3,
        1e15,
        "a rate such as 2GB/s, or bytes per second from 1e3 to 1e15",
        units={name + per: factor for name, factor in _BYTES.items() for per in ("/s", "")},
    ),
    schema={"anyOf": [{"type": "string"}, {"type": "number"}]},
    metavar="RATE",
    types=(int, float, str),
)
_TIME = replace(duration(), schema={"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}]})
_POSITIVE = replace(duration(1), schema={"anyOf": [{"type": "string"}, {"type": "number", "minimum": 1}]})
_SHARE = replace(
    SHARE, schema={"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0, "maximum": 10}]}
)
_PRICE = number(0, 1e9, "a number from 0 to 1e+09")

# fmt: off
PLAN = table(
    *DATA.values(),
    Field("steps", whole(1, 10**12), "Steps (updates), instead of tokens.", otherwise="from the tokens or samples"),
    Field("failure_rate", number(0, 1e6, "failures per 1,000 days of a node, from 0 to 1e+06"),
        "Failures per 1,000 node-days.", otherwise="from published sites and --db"),
    Field("detection", _TIME, "Time from a failure to its detection.",
        otherwise=f"{DETECTION_S:.0f}s; hours if restarted by people"),
    Field("restarted_by", choice(("automatic", "people")),
        "Who notices failures and restarts the run: its launcher, or people.", "automatic"),
    Field("replacement", _TIME, "Time to replace a failed node by a spare node.", otherwise="3m"),
    Field("startup", _TIME, "Time from the start of the processes to the first step, without loading.",
        otherwise="as in public runs of this size"),
    Field("checkpoint", choice(MODES),
        "Checkpoints: in the background (async), while training waits (sync), or in a neighbour's memory.", "async"),
    Field("checkpoint_every", whole(1, 10**12), "Steps between checkpoints.", otherwise="the optimum", unit="steps"),
    Field("checkpoint_cost", _TIME,
        "Time that a checkpoint pauses training.", otherwise="the copy to the host"),
    Field("storage_bandwidth", RATE, "Rate of one node to storage, or to its neighbour (memory).",
        otherwise="1GB/s; for memory, the network's"),
    Field("storage_total", RATE, "Rate of the whole storage.", otherwise="the sum of all nodes"),
    Field("evaluation", _SHARE, "Time of evaluations, as a share of the steps' time.", otherwise="0"),
    Field("maintenance_every", _POSITIVE, "Time between maintenances.", otherwise="none"),
    Field("maintenance", _TIME, "Time of one maintenance.", otherwise="8h"),
    Field("walltime_limit", _POSITIVE, "Longest time of one job; the run is then a chain of jobs.", otherwise="none"),
    Field("queue", _TIME, "Mean waiting time of a job in the queue.", otherwise="0"),
    Field("spares", whole(0, 10**6), "Spare nodes reserved for the run.", otherwise="0; the cluster has spares"),
    Field("repair", _TIME, "Time to repair a failed node.", otherwise="1d"),
    Field("elastic", FLAG, "Continue with one replica fewer while no spare node is free.", False),
    Field("price", _PRICE, "Price per GPU-hour."),
    Field("node_month_price", _PRICE, "Price of a node per month of 730 hours."),
    Field("simulations", whole(100, 100_000), "Simulated runs.", 2_000),
    Field("seed", whole(0, 2**32), "Seed of the simulation.", 0),
)
# fmt: on
