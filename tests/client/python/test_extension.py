"""The extension alone, over a libkiln that does as it is told (double.cc)."""

import gc
import json
import threading
import time

import pytest
import torch

from kiln import _kiln


def relayout(tensor, strides):
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor.detach())


_kiln.attach(torch.Tensor, relayout)
F32 = ("f32", (2, 3), (3, 1))


@pytest.fixture
def client():
    return _kiln.Client()


def program(client, behaviour, inputs, outputs, nbytes=0):
    return client.compile(f"{len(inputs)} {len(outputs)} {behaviour} {nbytes}", inputs, outputs)


def test_outputs_have_the_declared_dtype_shape_and_bytes(client):
    x = torch.randn(2, 3)
    (y,) = program(client, "copy", [F32], [F32], 24)([x])
    assert torch.equal(x, y) and y.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("name, dtype", [("bool", torch.bool), ("u8", torch.uint8), ("i8", torch.int8),
                                         ("i32", torch.int32), ("i64", torch.int64), ("f16", torch.float16),
                                         ("bf16", torch.bfloat16), ("f32", torch.float32), ("f64", torch.float64)])  # fmt: skip
def test_every_dtype_crosses_both_ways(client, name, dtype):
    x = torch.randint(0, 2, (5,)).to(dtype)
    layout = (name, (5,), (1,))
    (y,) = program(client, "copy", [layout], [layout], 5 * x.element_size())([x])
    assert y.dtype == dtype and torch.equal(x, y)


def test_outputs_get_permuted_strides(client):
    (y,) = program(client, "fill", [], [("i64", (2, 3, 4), (1, 8, 2))], 24 * 8)([])
    assert y.shape == (2, 3, 4) and y.stride() == (1, 8, 2) and (y == 0x1111111111111111).all()
    y += 1  # it is an ordinary tensor
    assert y.sum() == 24 * 0x1111111111111112 - (1 << 64) * ((24 * 0x1111111111111112 + (1 << 63)) >> 64)


def test_scalars_and_empty_tensors_cross(client):
    scalar, empty = ("f64", (), ()), ("f32", (0, 4), (4, 1))
    (s, e) = program(client, "copy", [scalar, empty], [scalar, empty], 8)([torch.tensor(2.5, dtype=torch.float64), torch.empty(0, 4)])
    assert s.item() == 2.5 and e.shape == (0, 4)


def test_outputs_outlive_the_program(client):
    run = program(client, "fill", [], [("u8", (1000,), (1,))], 1000)
    (y,) = run([])
    del run
    gc.collect()
    assert (y == 0x11).all()


def test_an_alias_output_is_the_input_itself(client):
    x = torch.randn(2, 3)
    (y,) = program(client, "alias", [F32], [F32])([x])
    assert y is x


def test_parameters_that_require_grad_are_lent(client):
    x = torch.nn.Parameter(torch.randn(2, 3))
    (y,) = program(client, "copy", [F32], [F32], 24)([x])
    assert torch.equal(x, y) and not y.requires_grad


@pytest.mark.parametrize("wrong", [torch.randn(2, 4), torch.randn(6), torch.randn(2, 3, dtype=torch.float64),
                                   torch.zeros(2, 3, dtype=torch.int32)])  # fmt: skip
def test_a_wrong_tensor_is_a_type_error_that_names_it(client, wrong):
    run = program(client, "noop", [F32, F32], [])
    with pytest.raises(TypeError, match=r"input 1: expected a cpu tensor f32\[2, 3\]\{3, 1\}, got"):
        run([torch.randn(2, 3), wrong])


HOST_MEMORY = (1, 0)


@pytest.fixture
def of_device():
    """A client of a device whose memory is the host's."""
    return _kiln.Client(device="double:0")


def counts(of_client, run):
    return {**json.loads(run.describe()), "finishes": json.loads(of_client.stats())["finishes"]}


def test_a_program_of_a_device_is_put_on_the_frameworks_queue_and_not_waited_for(of_device):
    x = torch.randn(2, 3)
    run = of_device.compile("1 1 copy 24", [F32], [F32], memory=HOST_MEMORY)
    (y,) = run([x])
    assert torch.equal(x, y)
    assert counts(of_device, run) == {"runs": 0, "launches": 1, "finishes": 0}


def test_a_program_of_a_device_that_checks_indices_is_waited_for_and_raises(of_device):
    run = of_device.compile("1 0 out_of_range", [F32], [], memory=HOST_MEMORY)
    with pytest.raises(IndexError, match="index out of range"):
        run([torch.randn(2, 3)])
    assert counts(of_device, run) == {"runs": 0, "launches": 1, "finishes": 1}


def test_a_tensor_of_another_device_is_a_type_error_that_names_both(of_device):
    run = of_device.compile("1 0 noop", [F32], [], memory=(2, 1))
    with pytest.raises(TypeError, match=r"input 0: expected a device 2:1 tensor f32\[2, 3\]\{3, 1\}, got a cpu tensor"):
        run([torch.randn(2, 3)])
    with pytest.raises(TypeError, match="memory must be DLPack's"):
        of_device.compile("0 0 noop", [], [], memory=(1, 2, 3))


def test_graphs_are_built_for_targets_by_name(client):
    client.build("1 1 noop", "sm_90a,pvc")
    with pytest.raises(_kiln.Error, match="no target is called nowhere"):
        client.build("1 1 noop", "nowhere")
    with pytest.raises(_kiln.Error, match="expected a graph"):
        client.build("nonsense", "pvc")


def test_a_meta_tensor_and_a_non_tensor_are_refused(client):
    run = program(client, "noop", [F32], [])
    for wrong in (torch.empty(2, 3, device="meta"), "text", None):
        with pytest.raises(Exception):  # noqa: B017: torch's exchange chooses the type
            run([wrong])


def test_an_output_is_written_where_it_may_lie(client):
    run = program(client, "copy", [F32], [F32], 24)
    x, place = torch.randn(2, 3), torch.zeros(2, 3)
    assert run([x], [None])[0] is not x
    assert run([x], [place])[0] is place and torch.equal(place, x)
    assert run([x], [x])[0] is x, "the program says that it may"
    for unfit in (torch.zeros(3, 2).t(), torch.zeros(2, 3, dtype=torch.float64), torch.zeros(3, 3)):
        (made,) = run([x], [unfit])
        assert made is not unfit and torch.equal(made, x)
    memory = torch.randn(9)
    (made,) = run([memory[:6].view(2, 3)], [memory[3:].view(2, 3)])
    assert made.data_ptr() != memory[3:].data_ptr(), "part of the input lies there"
    with pytest.raises(TypeError, match="list of 1 tensors"):
        run([x], [place, place])


def test_the_number_of_inputs_is_checked(client):
    with pytest.raises(TypeError, match="expected 1 inputs, got 2"):
        program(client, "noop", [F32], [])([torch.randn(2, 3)] * 2)
    with pytest.raises(TypeError, match="one list"):
        program(client, "noop", [F32], [])((torch.randn(2, 3),))


def test_other_strides_are_copied_into_the_expected_ones(client):
    x = torch.randn(3, 2).t()
    run = program(client, "copy", [F32], [F32], 24)
    (y,) = run([x])
    assert torch.equal(x, y) and run.relayouts == 1
    run([torch.randn(2, 3)])
    assert run.relayouts == 1


def test_strides_of_extent_one_do_not_matter(client):
    run = program(client, "copy", [("f32", (1, 3), (3, 1))], [("f32", (3,), (1,))], 12)
    x = torch.randn(3).as_strided((1, 3), (77, 1))
    assert torch.equal(run([x])[0], x[0]) and run.relayouts == 0


def test_expanded_inputs_are_taken_as_they_are(client):
    run = program(client, "noop", [("f32", (4, 3), (0, 1))], [])
    run([torch.randn(3).expand(4, 3)])
    assert run.relayouts == 0


def test_a_misaligned_input_is_copied(client):
    raw = torch.zeros(13 * 4 + 1, dtype=torch.uint8)
    x = torch.frombuffer(memoryview(raw.numpy())[1:25], dtype=torch.float32).view(2, 3)
    assert x.data_ptr() % 4 == 1 or x.data_ptr() % 4 == 3 or x.data_ptr() % 4 == 2
    run = program(client, "copy", [F32], [F32], 24)
    assert torch.equal(run([x])[0], x) and run.relayouts == 1


def test_out_of_range_is_torchs_index_error(client):
    with pytest.raises(IndexError, match="index out of range in self"):
        program(client, "out_of_range", [], [])([])


def test_errors_carry_code_message_and_op(client):
    with pytest.raises(_kiln.Error) as caught:
        program(client, "unavailable", [], [])
    assert (caught.value.code, caught.value.message, str(caught.value)) == (14, "no daemon", "no daemon")
    assert (caught.value.code_name, caught.value.op) == ("unavailable", "")
    with pytest.raises(_kiln.Error) as caught:
        program(client, "unimplemented", [], [])
    assert (caught.value.code, caught.value.code_name, caught.value.op) == (12, "unimplemented", "cumsum")
    with pytest.raises(_kiln.Error, match="expected a graph"):
        client.compile("nonsense", [], [])
    with pytest.raises(_kiln.Error, match="config bad"):
        _kiln.Client(config_file="bad")


@pytest.mark.parametrize("layout, message", [(("f99", (1,), (1,)), "no dtype is called 'f99'"),
                                             (("f32", (1, 2), (1,)), "2 extents but 1 strides"),
                                             (("f32", (-1,), (1,)), "must not be negative")])  # fmt: skip
def test_layouts_are_checked(client, layout, message):
    with pytest.raises(ValueError, match=message):
        client.compile("1 0 noop", [layout], [])


def test_the_count_of_layouts_is_checked(client):
    with pytest.raises(ValueError, match="the program has 2 inputs, 1 described"):
        client.compile("2 0 noop", [F32], [])


def test_captures_go_there_and_back(client):
    assert client.capture_get(b"key") is None
    client.capture_put(b"key", b"\0bytes\xff")
    assert client.capture_get(b"key") == b"\0bytes\xff"
    client.capture_put(b"key", b"more", "its name")
    assert client.capture_get(b"key") == b"more"


def test_programs_run_on_many_threads(client):
    run = program(client, "copy", [F32], [F32], 24)
    failures = []

    def work():
        for _ in range(2000):
            x = torch.randn(2, 3)
            if not torch.equal(run([x])[0], x):
                failures.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures


def test_nothing_leaks_over_many_calls(client):
    import resource

    layout = ("f32", (64, 1024), (1024, 1))
    run = program(client, "noop", [layout, layout], [layout, layout])
    x = [torch.zeros(64, 1024), torch.zeros(1024, 64).t()]
    for _ in range(50):
        run(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        run(x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10  # KiB; one leaked call is 768


def test_a_call_with_twenty_tensors_costs_a_few_microseconds(client):
    layouts = [("f32", (8, 8), (8, 1))] * 20
    run = program(client, "noop", layouts[:18], layouts[18:])
    x = [torch.zeros(8, 8) for _ in range(18)]
    best = min(_time_us(run, x) for _ in range(20))
    print(f"{best:.2f} us for 18 inputs and 2 outputs")
    assert best < 40  # 2 to 4 alone; the machine may be busy


def _time_us(run, x, calls=500):
    begin = time.perf_counter()
    for _ in range(calls):
        run(x)
    return (time.perf_counter() - begin) / calls * 1e6
