#pragma once

namespace kiln {

/// What a compile worker has no business with fails with EPERM from here on, in this process and in all that it starts:
/// the network, other processes, names in the file system, the machine. For good.
void enter_sandbox();

/// So does from here on to open a file for writing, to make one, and to change whose it is or who may use it. Not for
/// builds of a device: its driver, in an execution worker, opens the device for writing.
void forbid_writing();

}  // namespace kiln
