#include "jit/build/build.h"
#include "jit/worker/zygote.h"

int main(int argc, char** argv) { return kiln::zygote_main(argc, argv, {}, kiln::build); }
