"""Kernels of Kiln beside torch's on a device: what gemms.py and gpt2.py share. Loads libkiln_device_bench.so."""
import ctypes
import os
import pathlib

import torch

DTYPES = {torch.float16: 5, torch.bfloat16: 6, torch.float32: 7}


class DeviceError(RuntimeError):
    """Attributes: code_name, of Kiln's status codes."""

    def __init__(self, library) -> None:
        super().__init__(library.kiln_device_error().decode())
        self.code_name = library.kiln_device_error_code().decode()


class Kernel:
    def __init__(self, library, handle):
        if not handle:
            raise DeviceError(library)
        self.library, self.handle = library, handle
        self.description = library.kiln_device_description(handle).decode()

    def __call__(self, *tensors):
        pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if self.library.kiln_device_launch(self.handle, pointers, stream):
            raise DeviceError(self.library)

    def __del__(self):
        self.library.kiln_device_destroy(self.handle)


class Library:
    def __init__(self):
        folder = os.environ.get("GPU_CHECK_LIBRARIES", pathlib.Path(__file__).resolve().parent)
        self.c = ctypes.CDLL(str(pathlib.Path(folder) / "libkiln_device_bench.so"))
        self.c.kiln_device_error.restype = self.c.kiln_device_description.restype = ctypes.c_char_p
        self.c.kiln_device_error_code.restype = ctypes.c_char_p
        self.c.kiln_device_description.argtypes = self.c.kiln_device_destroy.argtypes = [ctypes.c_void_p]
        self.c.kiln_device_linear.restype = self.c.kiln_device_layer_norm.restype = ctypes.c_void_p
        self.c.kiln_device_linear.argtypes = [ctypes.c_int] + [ctypes.c_int64] * 3 + [ctypes.c_int] * 6
        self.c.kiln_device_layer_norm.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        self.c.kiln_device_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        if self.c.kiln_device_open(0):
            raise DeviceError(self.c)

    def linear(self, dtype, m, n, k, x_transposed=False, w_transposed=False, bias=False, gelu=False, residual=False,
               candidate=0):
        return Kernel(self.c, self.c.kiln_device_linear(DTYPES[dtype], m, n, k, x_transposed, w_transposed, bias, gelu,
                                                        residual, candidate))

    def layer_norm(self, dtype, rows, columns):
        return Kernel(self.c, self.c.kiln_device_layer_norm(DTYPES[dtype], rows, columns))


def milliseconds(function, repetitions):
    """The mean of `repetitions` calls by the device's clock."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repetitions):
        function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repetitions
