// A libcuda.so.1 without a device. Kernels are taken and never run; whatever else is asked for fails as it does with the
// toolkit's stub. cuDNN loads the kernels of a plan before it gives the plan away, and wants every function that it may call.
#define EXPORT __attribute__((visibility("default")))

enum { k_stub_library = 34 };

static char s_object;

/// Arguments are left where the caller put them.
#define REFUSES(name) \
  EXPORT int name(void) { return k_stub_library; }
REFUSES(cuInit)
REFUSES(cuDriverGetVersion)
REFUSES(cuDeviceGetCount)
REFUSES(cuDeviceGet)
REFUSES(cuCtxGetCurrent)
REFUSES(cuCtxGetLimit)
REFUSES(cuCtxPopCurrent)
REFUSES(cuCtxPushCurrent)
REFUSES(cuStreamGetCtx)
REFUSES(cuLibraryLoadFromFile)
REFUSES(cuLinkCreate)
REFUSES(cuLinkAddData)
REFUSES(cuLinkComplete)
REFUSES(cuLinkDestroy)
REFUSES(cuLaunchKernel)
REFUSES(cuLaunchKernelEx)
REFUSES(cuLaunchCooperativeKernel)
REFUSES(cuOccupancyMaxPotentialClusterSize)

static int say(const char** text) {
  *text = "there is no device behind this driver";
  return 0;
}
EXPORT int cuGetErrorName(int result, const char** text) {
  (void)result;
  return say(text);
}
EXPORT int cuGetErrorString(int result, const char** text) {
  (void)result;
  return say(text);
}
EXPORT int cuLibraryLoadData(void** library) {
  *library = &s_object;
  return 0;
}
EXPORT int cuLibraryGetKernel(void** kernel) {
  *kernel = &s_object;
  return 0;
}
EXPORT int cuLibraryUnload(void) { return 0; }
EXPORT int cuKernelSetAttribute(void) { return 0; }
EXPORT int cuKernelGetAttribute(int* value) {
  *value = 0;
  return 0;
}
