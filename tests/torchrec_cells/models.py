"""Models of collections, and batches for them: all of it for the unsharded model, a half for each of two ranks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    KeyedTensor,
)
from torchrec.distributed.types import LazyAwaitable
from torchrec.modules.embedding_configs import DataType, NoEvictionPolicy, PoolingType
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
from torchrec.modules.feature_processor_ import PositionWeightedModule, PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.streamable import Pipelineable

from shardbench.engine.torchrec.sharding import configs_of

WORLD, BATCH = 2, 16
"""Ranks, and samples of all ranks together."""
SHAPES = ((48, 16), (40, 16), (64, 32), (16, 16))
"""Rows and widths of the tables t0, t1, ... unless a model says otherwise."""
SLOTS, RAW_IDS = 128, 40
"""Rows of a table behind managed collision, and how many ids there are: each has a slot of its own."""

Modules = dict[str, torch.nn.Module]
Build = Callable[[torch.device], Modules]


class MissingError(Exception):
    """Says what the installed release of TorchRec does not have."""


def of_release(module: str, name: str) -> Any:
    """Return a name of a module of TorchRec; raises MissingError where the installed release has none."""
    try:
        return getattr(import_module(f"torchrec.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise MissingError(f"torchrec.{module} has no {name}") from error


@dataclass
class Batch(Pipelineable):
    """Lookups and labels float32 [samples], as TorchRec's pipelines take them."""

    lookups: KeyedJaggedTensor
    labels: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(self.lookups.to(device, non_blocking=non_blocking), self.labels.to(device))

    def record_stream(self, stream: Any) -> None:
        if self.labels.is_cuda:  # torch has no streams of CPUs to record
            self.lookups.record_stream(stream)

    def pin_memory(self) -> "Batch":
        return self


def summed(found: Any) -> torch.Tensor:
    """Return [samples, width] of what a collection of any kind gives, by key: bags as they are, sequences summed.

    The keys of a sharded collection are in another order than those of the unsharded one.
    """
    found = found[0] if isinstance(found, tuple) else found  # managed collision also gives the ids that it made
    found = found.wait() if isinstance(found, LazyAwaitable) else found
    if isinstance(found, torch.Tensor):  # a tower's
        return found
    if isinstance(found, KeyedTensor):
        return torch.cat([found[key] for key in sorted(found.keys())], dim=1)
    bags = [
        torch.segment_reduce(one.values(), "sum", lengths=one.lengths().long(), unsafe=True, initial=0.0)
        for _, one in sorted(found.items())
    ]
    return torch.cat(bags, dim=1)


torch.fx.wrap("summed")


class Interaction(torch.nn.Module):
    """A tower's layer on the vectors of its collection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, width)

    def forward(self, found: Any) -> torch.Tensor:
        return self.layer(summed(found))


class Model(torch.nn.Module):
    """Collections, and a layer on their vectors; gives the loss, and the loss and logits again."""

    def __init__(self, modules: Modules, width: int) -> None:
        super().__init__()
        self.names = list(modules)
        for name, module in modules.items():
            self.add_module(name, module)
        self.top = torch.nn.Linear(width, 1)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        vectors = [summed(getattr(self, name)(batch.lookups)) for name in self.names]
        logits = self.top(torch.cat(vectors, dim=1).float()).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, (loss.detach(), logits.detach())


def make_model(build: Build, device: torch.device, seed: int) -> Model:
    """Make the model of a case, the same on every rank."""
    torch.manual_seed(seed)
    modules = build(device)
    width = sum(c.embedding_dim * len(c.feature_names) for module in modules.values() for c in configs_within(module))
    return Model(modules, width)


def configs_within(module: torch.nn.Module) -> list[Any]:
    """Return the configurations of the tables of a module's collections."""
    kinds = (EmbeddingBagCollection, EmbeddingCollection)
    return [config for one in module.modules() if isinstance(one, kinds) for config in configs_of(one)]


@dataclass(frozen=True)
class Lookups:
    """Draws batches: of every feature the ids there are, and the longest bag."""

    features: dict[str, int]
    longest: dict[str, int]
    weighted: bool
    managed: bool
    """The first bags are long: managed collision has room for as many new ids as the first batch has lookups."""
    given: Callable[[Batch], Batch]
    """What the sharded model is given of a rank's batch."""

    @classmethod
    def of(
        cls,
        model: Model,
        longest: Mapping[str, int],
        *,
        weighted: bool = False,
        managed: bool = False,
        given: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> "Lookups":
        """Return the batches of a model; bags have up to three lookups unless ``longest`` says otherwise."""
        features: dict[str, int] = {}
        for config in configs_within(model):
            for name in config.feature_names:
                rows = RAW_IDS if managed else config.num_embeddings
                features[name] = min(rows, features.get(name, rows))
        return cls(features, {name: longest.get(name, 3) for name in features}, weighted, managed, given)

    def whole(self, step: int) -> Batch:
        """Draw the batch of all ranks."""
        generator = torch.Generator().manual_seed(100 + step)
        lengths = torch.stack([
            torch.randint(0, most + 1, (BATCH,), generator=generator) for most in self.longest.values()
        ])  # fmt: skip
        if self.managed and step == 0:
            lengths = torch.full_like(lengths, 6)
        totals = lengths.sum(dim=1).tolist()
        ids = [torch.randint(0, n, (k,), generator=generator) for n, k in zip(self.features.values(), totals)]
        weights = torch.rand(sum(totals), generator=generator) + 0.5 if self.weighted else None
        labels = torch.randint(0, 2, (BATCH,), generator=generator).float()
        return Batch(self._joined(torch.cat(ids), lengths, weights), labels)

    def part(self, step: int, rank: int) -> Batch:
        """Draw a rank's half of it."""
        whole, half = self.whole(step), BATCH // WORLD
        mine = slice(rank * half, (rank + 1) * half)
        lengths = whole.lookups.lengths().view(len(self.features), BATCH)
        samples = torch.arange(BATCH).repeat(len(self.features)).repeat_interleave(lengths.flatten())
        chosen = (samples >= mine.start) & (samples < mine.stop)
        weights = whole.lookups.weights_or_none()
        own = weights[chosen] if weights is not None else None
        return self.given(
            Batch(self._joined(whole.lookups.values()[chosen], lengths[:, mine], own), whole.labels[mine])
        )

    def _joined(self, ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=list(self.features), values=ids, lengths=lengths.flatten().to(torch.int32), weights=weights
        )


def condensed(batch: Batch) -> Batch:
    """Give every bag of a feature once, and which one is a sample's: features have batches of their own lengths."""
    keys = batch.lookups.keys()
    bags_of_keys = [[tuple(bag.tolist()) for bag in batch.lookups[key].to_dense()] for key in keys]
    once = [sorted(set(bags)) for bags in bags_of_keys]
    lookups = KeyedJaggedTensor(
        keys=keys,
        values=torch.tensor([row for own in once for bag in own for row in bag]),
        lengths=torch.tensor([len(bag) for own in once for bag in own], dtype=torch.int32),
        stride_per_key_per_rank=[[len(own)] for own in once],
        inverse_indices=(keys, torch.tensor([list(map(own.index, bags)) for own, bags in zip(once, bags_of_keys)])),
    )
    return Batch(lookups, batch.labels)


def times_length(batch: Batch) -> Batch:
    """Multiply weights by the length of their bag, which a weighted mean divides by: torch has only weighted sums."""
    lookups, lengths = batch.lookups, batch.lookups.lengths()
    weights = lookups.weights() * lengths.repeat_interleave(lengths)
    return Batch(KeyedJaggedTensor(lookups.keys(), lookups.values(), weights, lengths), batch.labels)


def bag_configs(shapes: tuple[tuple[int, int], ...] = SHAPES, first: int = 0, **rest: Any) -> list[EmbeddingBagConfig]:
    """Return the configurations of tables t0, t1, ... with features f0, f1, ..."""
    return [
        EmbeddingBagConfig(name=f"t{i}", num_embeddings=n, embedding_dim=dim, feature_names=[f"f{i}"], **rest)
        for i, (n, dim) in enumerate(shapes, first)
    ]


def bags(device: torch.device, *, weighted: bool = False, **rest: Any) -> Modules:
    """Four tables of bags; more is said of all of them by ``rest``, as their configuration has it."""
    return {"bags": EmbeddingBagCollection(tables=bag_configs(**rest), is_weighted=weighted, device=device)}


def virtual(device: torch.device, *, pooled: bool = True) -> Modules:
    """Tables of which t2 is virtual: its rows are made as they are asked for."""
    configs: Any = bag_configs() if pooled else sequence_configs()
    one = configs[2]
    one.use_virtual_table, one.total_num_buckets, one.enable_embedding_update = True, WORLD, not pooled
    one.virtual_table_eviction_policy = NoEvictionPolicy()
    if pooled:
        return {"bags": EmbeddingBagCollection(tables=configs, device=device)}
    return {"bags": EmbeddingCollection(tables=configs, device=device)}


def sequence_configs(rows: tuple[int, ...] = (48, 40, 64), first: int = 0) -> list[EmbeddingConfig]:
    """Return the configurations of tables of sequences, 16 wide."""
    return [
        EmbeddingConfig(name=f"t{i}", num_embeddings=n, embedding_dim=16, feature_names=[f"f{i}"])
        for i, n in enumerate(rows, first)
    ]


def sequences(device: torch.device) -> Modules:
    """Three tables of sequences."""
    return {"sequences": EmbeddingCollection(tables=sequence_configs(), device=device)}


def shared_tables(device: torch.device) -> Modules:
    """Tables of two features each, of bags and of sequences."""
    pooled, unpooled = bag_configs(), sequence_configs((24, 32), first=4)
    for config in (*pooled, *unpooled):
        config.feature_names = [f"{config.name}_a", f"{config.name}_b"]
    return {
        "bags": EmbeddingBagCollection(tables=pooled, device=device),
        "sequences": EmbeddingCollection(tables=unpooled, device=device),
    }


def shared_features(device: torch.device) -> Modules:
    """A feature that is looked up in two tables of one collection."""
    configs = bag_configs()
    configs[1].feature_names = ["f0"]
    return {"bags": EmbeddingBagCollection(tables=configs, device=device)}


def several(device: torch.device) -> Modules:
    """Two collections of bags and one of sequences."""
    return {
        "first": EmbeddingBagCollection(tables=bag_configs(SHAPES[:2]), device=device),
        "second": EmbeddingBagCollection(tables=bag_configs(SHAPES[2:], first=2), device=device),
        "sequences": EmbeddingCollection(tables=sequence_configs((24, 32), first=4), device=device),
    }


def same_names(device: torch.device) -> Modules:
    """Two collections with tables of the same names, and of other sizes."""
    other = bag_configs(((24, 16), (32, 8)))
    for config in other:
        config.feature_names = [f"g{config.name}"]
    return {
        "first": EmbeddingBagCollection(tables=bag_configs(SHAPES[:2]), device=device),
        "second": EmbeddingBagCollection(tables=other, device=device),
    }


def processed(device: torch.device, *, collection: bool = False) -> Modules:
    """Bags whose lookups are weighted by a learnt weight of their position."""
    most = {config.feature_names[0]: 6 for config in bag_configs()}
    inner = EmbeddingBagCollection(tables=bag_configs(), is_weighted=True, device=device)
    if collection:
        processors: Any = PositionWeightedModuleCollection(max_feature_lengths=most, device=device)
    else:
        processors = {name: PositionWeightedModule(max_feature_length=n, device=device) for name, n in most.items()}
    return {"processed": FeatureProcessedEmbeddingBagCollection(inner, processors)}


def towers(device: torch.device, *, collection: bool = False) -> Modules:
    """A tower of bags, or a collection of it and one of sequences."""
    pooled = EmbeddingBagCollection(tables=bag_configs(SHAPES[:2]), device=device)
    first = EmbeddingTower(pooled, Interaction(32))
    if not collection:
        return {"tower": first}
    unpooled = EmbeddingCollection(tables=sequence_configs((24, 32), first=2), device=device)
    return {"towers": EmbeddingTowerCollection([first, EmbeddingTower(unpooled, Interaction(32))])}


def pruned(device: torch.device, *, pooled: bool = True) -> Modules:
    """Tables that are pruned in training (ITEP): there are twice as many ids as rows."""
    (module,) = (bags if pooled else sequences)(device).values()
    pruning = of_release("modules.itep_modules", "GenericITEPModule")
    kind = "ITEPEmbeddingBagCollection" if pooled else "ITEPEmbeddingCollection"
    ids = {config.name: 2 * config.num_embeddings for config in configs_within(module)}
    return {"pruned": of_release("modules.itep_embedding_modules", kind)(module, pruning(ids))}


def prioritized(device: torch.device) -> Modules:
    """Tables of sequences of which rows that the last batch also had are sent first (PEC)."""
    kind = of_release("modules.pec_embedding_modules", "PECEmbeddingCollection")
    return {"prioritized": kind(EmbeddingCollection(tables=sequence_configs(), device=device))}


def slots(device: torch.device, *, buckets: int = WORLD) -> torch.nn.Module:
    """Give ids slots by how often they are looked up."""
    return MCHManagedCollisionModule(
        zch_size=SLOTS,
        device=device,
        eviction_policy=DistanceLFU_EvictionPolicy(),
        eviction_interval=1,
        input_hash_size=RAW_IDS,
        buckets=buckets,
    )


def hashed(device: torch.device) -> torch.nn.Module:
    """Give ids slots by a hash (HashZch)."""
    kind = of_release("modules.hash_mc_modules", "HashZchManagedCollisionModule")
    return kind(SLOTS, device, total_num_buckets=WORLD, input_hash_size=RAW_IDS)


def managed(
    device: torch.device,
    *,
    pooled: bool = True,
    collisions: Callable[[torch.device], torch.nn.Module] = slots,
) -> Modules:
    """Tables whose ids are given slots by managed collision; all rows are equal, as an id's slot is a rank's to say."""
    kind: Any = EmbeddingBagConfig if pooled else EmbeddingConfig
    configs = [
        kind(name=f"t{i}", num_embeddings=SLOTS, embedding_dim=16, feature_names=[f"f{i}"], init_fn=_equal)
        for i in range(2)
    ]
    modules = {config.name: collisions(device) for config in configs}
    of_tables = ManagedCollisionCollection(managed_collision_modules=modules, embedding_configs=configs)
    if pooled:
        inner: Any = EmbeddingBagCollection(tables=configs, device=device)
        return {"managed": ManagedCollisionEmbeddingBagCollection(inner, of_tables)}
    inner = EmbeddingCollection(tables=configs, device=device)
    return {"managed": ManagedCollisionEmbeddingCollection(inner, of_tables)}


def _equal(weights: torch.Tensor) -> torch.Tensor:
    return torch.nn.init.constant_(weights, 0.1)


MEAN = {"pooling": PoolingType.MEAN}
FORMATS = {"fp32": DataType.FP32, "fp16": DataType.FP16, "bf16": DataType.BF16, "int8": DataType.INT8}
