// A library with the loader's name and none of its functions: whoever opens it stops there, and no driver is opened.
extern const int kiln_fake_loader;
__attribute__((visibility("default"))) const int kiln_fake_loader = 1;
