"""What the receiving half for vLLM makes of `InitInfo`, over stand-ins for what it uses of vLLM 0.32 and of torch."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

import tensorhub as th

BASE = "vllm.distributed.weight_transfer.base"
RELOAD = "vllm.model_executor.model_loader.reload"
LAYERWISE = f"{RELOAD}.layerwise"
ADAPTER = "tensorhub.integrations.vllm.engine"
LOADING = "tensorhub.integrations.vllm.loading"


class Made(list[tuple[str, tuple[Any, ...], dict[str, Any]]]):
    """Stands in for the workers' classes: their names, and what each was made with."""

    def of(self, name: str) -> Callable[..., Any]:
        def make(*given: Any, **options: Any) -> Any:
            self.append((name, given, options))
            return SimpleNamespace(close=lambda: None, let_go=lambda: None)

        return make


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The adapter's module."""
    for module in (BASE, LAYERWISE):
        parts = module.split(".")
        for i in range(1, len(parts) + 1):
            name = ".".join(parts[:i])
            if name not in sys.modules:
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("WeightTransferEngine", "WeightTransferInitInfo", "WeightTransferUpdateInfo"):
        monkeypatch.setattr(sys.modules[BASE], name, type(name, (), {}), raising=False)
    for name in ("initialize_layerwise_reload", "finalize_layerwise_reload"):
        monkeypatch.setattr(sys.modules[RELOAD], name, lambda *_: None, raising=False)
    monkeypatch.setattr(sys.modules[LAYERWISE], "get_layerwise_info", lambda layer: layer.info, raising=False)
    if importlib.util.find_spec("torch") is None:
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    fresh = [ADAPTER, LOADING, "tensorhub.torch"]
    for name in fresh:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(ADAPTER)
    for name in fresh:
        sys.modules.pop(name, None)  # the next test may have the real ones


def connected(engine: Any, **fields: Any) -> Any:
    """One worker of an engine, initialized."""
    worker = engine.TensorHubWeightTransferEngine()
    worker.vllm_config = SimpleNamespace(instance_id="1")
    worker.parallel_config = SimpleNamespace(
        rank=0, world_size=1, data_parallel_index=0, data_parallel_size=1, enable_expert_parallel=False
    )
    worker.model_config, worker.device = SimpleNamespace(quantization=None), SimpleNamespace(type="cpu")
    worker.init_transfer_engine(engine.InitInfo(server="tcp://127.0.0.1:5570", model="policy", **fields))
    return worker


class Evicted:
    """A worker of the hub, which takes no call; the second one does."""

    made: ClassVar[list[Evicted]] = []
    version = 1

    def __init__(self, *_given: Any, **_options: Any) -> None:
        self.is_closed = False
        self.made.append(self)

    def add_all(self, tensors: Any) -> None:
        pass

    def receive(self, *_given: Any, **_options: Any) -> None:
        if len(self.made) == 1:
            raise th.Replaced("evicted")

    update = publish = unpublish = receive

    def tensors(self) -> list[Any]:
        return []

    def let_go(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("runtime", ["", "staged", "in_place"])
def test_an_engine_that_was_evicted_joins_anew(engine: Any, monkeypatch: pytest.MonkeyPatch, runtime: str) -> None:
    monkeypatch.setattr(Evicted, "made", [])
    for name in ("Receiver", "Subscriber"):
        monkeypatch.setattr(engine, name, Evicted)
    module = SimpleNamespace(
        load_weights=lambda _: set(), modules=list, named_modules=list, named_parameters=list, named_buffers=list
    )
    worker = connected(engine, runtime=runtime)
    worker.model = module
    with pytest.raises(th.Replaced):
        worker.receive_weights(SimpleNamespace(version=1))
    worker.receive_weights(SimpleNamespace(version=1))
    assert [each.is_closed for each in Evicted.made] == [True, False]
    worker.shutdown()
    assert [each.is_closed for each in Evicted.made] == [True, True]
    if not runtime:
        with pytest.raises(th.InvalidArgument, match="was not initialized"):
            worker.receive_weights(SimpleNamespace(version=1))


@pytest.mark.parametrize("failing", [None, 0, 1])
def test_ranks_of_an_engine_load_a_version_together_or_not_at_all(
    engine: Any, monkeypatch: pytest.MonkeyPatch, failing: int | None
) -> None:
    failures: list[Exception | None] = []

    def fail_together(failure: Exception | None, version: int, rank: int, ranks: int, groups: Any) -> None:
        assert (version, rank, ranks, groups) == (7, 0, 2, ["of the host"])
        failures.append(failure)
        if failing is not None:
            raise failure or th.GroupFailed("rank 1 has not received it")

    def receive(*_given: Any, **_options: Any) -> None:
        if failing == 0:
            raise th.TimedOut("no version came")

    group = SimpleNamespace(cpu_group="of the host")
    monkeypatch.setattr(engine, "_groups_of_an_engine", lambda: [group], raising=False)
    monkeypatch.setattr(engine, "fail_together", fail_together, raising=False)
    loaded: list[int] = []
    let_go: list[list[int]] = []
    worker = connected(engine)
    worker.parallel_config.world_size = 2
    receiver = SimpleNamespace(receive=receive, version=7, let_go=lambda: let_go.append(list(loaded)))
    monkeypatch.setattr(worker, "_receiver", receiver)
    monkeypatch.setattr(worker, "load_received", lambda: loaded.append(7))
    if failing is None:
        worker.receive_weights(SimpleNamespace(version=7))
    else:
        with pytest.raises(th.TimedOut if failing == 0 else th.GroupFailed):
            worker.receive_weights(SimpleNamespace(version=7))
    assert loaded == ([7] if failing is None else [])
    assert let_go == [loaded]  # so that this rank delays no other, whatever has happened
    assert [type(each) for each in failures] == [th.TimedOut if failing == 0 else type(None)]


class Received:
    """A receiver that has a version."""

    version = 7

    def __init__(self, *_given: Any, **_options: Any) -> None:
        pass

    def receive(self, *_given: Any, **_options: Any) -> None:
        pass

    def tensors(self) -> Iterator[tuple[str, Any]]:
        yield "w", SimpleNamespace(dtype="f32", shape=(2,))

    def let_go(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_step_between_the_calls_of_an_update_finds_a_whole_model(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the layers are reloaded their tensors have no memory: a request that ran then ended the engine."""
    done: list[str] = []
    monkeypatch.setattr(engine, "Receiver", Received)
    loading = sys.modules[LOADING]
    monkeypatch.setattr(loading, "initialize_layerwise_reload", lambda model: done.append("taken apart"))
    monkeypatch.setattr(loading, "finalize_layerwise_reload", lambda model, config: done.append("whole"))
    worker = connected(engine)
    worker.model = Model()
    worker.model.load_weights = lambda tensors: done.extend(name for name, _ in tensors)
    worker.parse_update_info = lambda given: engine.UpdateInfo(**given)
    worker.start_weight_update()
    assert done == []
    worker.update_weights({"version": 7})
    assert done == ["taken apart", "w", "whole"]
    worker.finish_weight_update()
    assert done == ["taken apart", "w", "whole"]


class Model:
    """Of vLLM: layers with parameters, fused ones among them, while they are reloaded."""

    def __init__(self, **layers: Any) -> None:
        self.layers = layers
        self.loaded: list[str] = []

    def named_modules(self) -> Any:
        return self.layers.items()

    def modules(self) -> Any:
        return self.layers.values()

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        for prefix, layer in self.layers.items():
            for name, each in layer.named_parameters(recurse=False):
                yield f"{prefix}.{name}", each

    def load_weights(self, tensors: Any) -> set[str]:
        self.loaded = []
        for name, tensor in tensors:
            prefix, _, part = name.partition(".")
            self.layers[prefix].take(part, tensor)
            self.loaded.append(name)
        return {f"{prefix}.weight" for prefix, layer in self.layers.items() if layer.info.load_numel}


class Layer:
    """It is processed when all its elements are there, as vLLM's are."""

    def __init__(self, size: int, parts: int = 1) -> None:
        self.weight = SimpleNamespace(numel=lambda: size)
        if parts > 1:
            self.output_sizes = [size // parts] * parts
        self.info: Any = SimpleNamespace(loaded_weights=[], load_numel=0)
        self.info.can_load = lambda: self.info.load_numel < size

    def named_parameters(self, *, recurse: bool) -> list[tuple[str, Any]]:
        assert not recurse
        return [("weight", self.weight)]

    def take(self, _part: str, tensor: Any) -> None:
        (size,) = tensor.shape
        if self.info.load_numel + size > self.weight.numel():
            raise RuntimeError(f"start (0) + length ({size}) exceeds dimension size")
        self.info.loaded_weights.append(("weight", tensor))
        self.info.load_numel += size


WHOLE = {"norm.weight": 2, "qkv.q": 3, "qkv.k": 3, "qkv.v": 3}


def version_of(sizes: dict[str, int], dtype: str = "f32") -> list[tuple[str, Any]]:
    return [(name, SimpleNamespace(dtype=dtype, shape=(size,))) for name, size in sizes.items()]


@pytest.fixture
def load(engine: Any) -> Callable[..., Model]:
    """Loads a version, as a worker does, into layers that are as new."""
    loader = engine.CheckpointLoader()

    def run(tensors: list[tuple[str, Any]], version: int = 1, quantization: Any = None, **options: bool) -> Model:
        model = Model(norm=Layer(2), qkv=Layer(9, parts=3))
        loader.check(version, tensors)
        loader.load(model, SimpleNamespace(quantization=quantization), version, tensors, **options)
        return model

    return run


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (version_of({"qkv.q": 3, "qkv.k": 3, "qkv.v": 3}), "missing: norm.weight"),
        (version_of({**WHOLE, "qkv.bias": 3}), "unknown: qkv.bias .f32 .3"),
        (version_of({**WHOLE, "qkv.q": 2}), r"different: qkv.q .f32 \[2\], before it f32 \[3\]"),
        (version_of(WHOLE, "bf16"), r"different: norm.weight .bf16 \[2\], before it f32 \[2\].*, qkv.q"),
    ],
)
def test_another_layout_is_refused_before_anything_is_touched(
    load: Callable[..., Model], monkeypatch: pytest.MonkeyPatch, tensors: Any, said: str
) -> None:
    load(version_of(WHOLE), 1)
    untouched = lambda model: pytest.fail("the reload has begun")  # noqa: E731
    monkeypatch.setattr(sys.modules[LOADING], "initialize_layerwise_reload", untouched)
    with pytest.raises(th.LayoutMismatch, match=f"not those of version 1, .*{said}.* nothing of it was loaded") as e:
        load(tensors, 2)
    assert e.value.version == 2


def test_a_layout_is_known_after_another_initialization(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "Receiver", Received)
    worker = connected(engine)
    worker.model = Model(w=Layer(2))
    worker.model.load_weights = lambda tensors: [None for _ in tensors] and {"w.weight"}
    worker.receive_weights(SimpleNamespace(version=7))
    worker.init_transfer_engine(engine.InitInfo(server="tcp://10.0.0.1:5570", model="other"))
    monkeypatch.setattr(Received, "tensors", lambda self: iter(version_of({"v": 2})))
    with pytest.raises(th.LayoutMismatch, match="missing: w; unknown: v"):
        worker.receive_weights(SimpleNamespace(version=7))


@pytest.mark.parametrize(
    ("gone", "said"), [("norm.weight", r"\(norm.weight\)"), ("qkv.k", r"\(a part of qkv.weight\)")]
)
def test_a_first_version_without_a_tensor_is_an_error(load: Callable[..., Model], gone: str, said: str) -> None:
    tensors = version_of({name: size for name, size in WHOLE.items() if name != gone})
    for _ in range(2):  # it has not become the layout that is known
        with pytest.raises(th.LayoutMismatch, match=f"has weights that the version has not {said}, .* of no version"):
            load(tensors)
    load(version_of(WHOLE))


def test_a_first_version_may_lack_what_need_not_be_there(load: Callable[..., Model]) -> None:
    tensors = version_of({"norm.weight": 2})
    load(tensors, is_partial=True)
    load(tensors, quantization="fp8")
    with pytest.raises(th.LayoutMismatch, match="unknown: qkv"):
        load(version_of(WHOLE))


def test_layers_that_have_their_weights_are_not_missing(engine: Any) -> None:
    """A layer with a buffer of its own, and one that is padded, are not processed before the reload is finalized."""
    model = Model(qkv=Layer(9, parts=3), embedding=Layer(4))
    model.layers["qkv"].info.can_load = lambda: True
    config = SimpleNamespace(quantization=None)
    tensors = version_of({"qkv.q": 3, "qkv.k": 3, "qkv.v": 3, "embedding.weight": 3})
    engine.CheckpointLoader().load(model, config, 1, tensors)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_version_that_cannot_be_loaded_is_an_error_with_the_tensor(
    load: Callable[..., Model], monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    def finalize(model: Any, config: Any) -> None:
        assert all(not each.info.loaded_weights for each in model.modules() if each.info.can_load())
        if not is_whole:
            raise RuntimeError("Cannot copy out of meta tensor")

    monkeypatch.setattr(sys.modules[LOADING], "finalize_layerwise_reload", finalize)
    said = "publish a version that it can load" if is_whole else "start the engine again"
    with pytest.raises(th.InvalidArgument, match=rf"at tensor qkv.k \(f32 \[30\]\): RuntimeError: start.*{said}"):
        load(version_of({**WHOLE, "qkv.k": 30}))


@pytest.mark.parametrize("call", ["hide", "show"])
def test_weights_of_an_engine_that_was_evicted_are_shown_anew(
    engine: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(Evicted, "made", [])
    module = SimpleNamespace(named_modules=list, named_parameters=list, named_buffers=list)
    shown = engine.ShownWeights(Evicted)
    if call == "hide":
        shown._of(module)
    with pytest.raises(th.Replaced):
        shown.hide() if call == "hide" else shown.show(module, 1)
    shown.show(module, 1)
    assert [each.is_closed for each in Evicted.made] == [True, False]


@pytest.fixture
def init(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Made]:
    """Initializes one worker of an engine, and tells what it has made."""

    def run(rank: int = 0, ranks: int = 1, data_rank: int = 0, instance: str = "1", **fields: Any) -> Made:
        made = Made()
        for name in ("Receiver", "Publisher", "Subscriber"):
            monkeypatch.setattr(engine, name, made.of(name))
        worker = engine.TensorHubWeightTransferEngine()
        worker.vllm_config = SimpleNamespace(instance_id=instance)
        worker.parallel_config = SimpleNamespace(
            rank=rank,
            world_size=ranks,
            data_parallel_index=data_rank,
            data_parallel_size=1,  # of a model without experts, whatever the number of its data-parallel ranks
            enable_expert_parallel=False,
        )
        worker.init_transfer_engine(engine.InitInfo(server="tcp://10.0.0.1:5570", model="policy", **fields))
        for weights in (worker._shown, worker._taken):
            if weights is not None:
                weights._make({"memory": "cuda"})
        return made

    return run


def test_the_default_name_fits_the_keys_of_the_readme(init: Callable[..., Made]) -> None:
    ((_, (server, model, replica), _),) = init(rank=1, ranks=2, data_rank=1)
    assert (server, model) == ("tcp://10.0.0.1:5570", "policy")
    assert replica.startswith(f"rollout-{socket.gethostname()}-{os.getpid()}-")
    assert replica.endswith("-dp1-rank1")


def test_where_a_worker_listens(init: Callable[..., Made]) -> None:
    ((_, _, options),) = init(listen_host="127.0.0.1", advertised_host="10.2.0.7", datacenter="paris", transport="tcp")
    assert options["listen_host"] == "127.0.0.1"
    assert options["advertised_host"] == "10.2.0.7"
    assert options["listen_port"] == 0
    assert options["location"] == th.Location(datacenter="paris")
    del options["machine"]
    with th.Publisher("tcp://10.0.0.1:5570", "policy", "trainer-0", **options):
        pass  # they are a worker's options


def test_workers_of_a_machine_share_what_they_receive(init: Callable[..., Made]) -> None:
    def name(*ranks: int, **fields: Any) -> str:
        ((_, _, options),) = init(*ranks, **fields)
        return str(options["machine"])

    names = {name(rank, 2, data_rank, listen_port=7000) for rank in range(2) for data_rank in range(2)}
    assert len(names) == 1
    assert name(0, 2, datacenter="paris") not in names
    assert name(0, 2, instance="2") not in names, "another engine"
    assert name(0, 2, instance="1_dp3") in names, "a data-parallel rank of Ray"
    assert name(once_per_machine=False) == ""
    assert name(0, 2, replica="rollout-1", timeout=5.0) == name(1, 2, replica="rollout-1", instance="2")
    assert name(0, 2, replica="rollout-1") not in {*names, name(0, 2, replica="rollout-2")}
    assert name(machine="all", replica="rollout-1") == name(machine="all", instance="2")
    assert name(machine="all") not in {*names, name(machine="others"), name(machine="all", datacenter="paris")}


def test_each_worker_of_an_engine_has_a_port_of_its_own(init: Callable[..., Made]) -> None:
    ports = [
        options["listen_port"]
        for data_rank in range(2)
        for rank in range(3)
        for _, _, options in init(rank, 3, data_rank, listen_port=7000)
    ]
    assert ports == [7000, 7001, 7002, 7003, 7004, 7005]


@pytest.mark.parametrize("port", [0, 7000])
def test_weights_that_are_shown_have_another_port(init: Callable[..., Made], port: int) -> None:
    made = init(1, 3, 1, listen_port=port, runtime="show", replica="rollout-0")
    ports = {name: options["listen_port"] for name, _, options in made}
    assert ports == ({"Receiver": 7008, "Publisher": 7009} if port else {"Receiver": 0, "Publisher": 0})
    ((name, _, options),) = init(1, 3, 1, listen_port=port, runtime="staged", replica="rollout-0")
    assert (name, options["listen_port"]) == ("Subscriber", 7004 if port else 0)
