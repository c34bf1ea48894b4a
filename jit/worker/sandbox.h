#pragma once

namespace kiln {

/// What a compile worker has no business with fails from here on, in this process and in all that it starts: the network,
/// other processes, names in the file system, the machine. For good. With EPERM; a name that would be removed is not there.
void enter_sandbox();

/// So does from here on what a device's driver needs, in an execution worker, and nobody else: to open a file for writing, to
/// make one, to change whose it is or who may use it, and sockets that have names on this host.
void forbid_what_drivers_need();

}  // namespace kiln
