#include "service/daemon_main.h"
#include "service/store_entries.h"

int main(int argc, char** argv) { return kiln::daemon_main(argc, argv, kiln::open_entry_store); }
