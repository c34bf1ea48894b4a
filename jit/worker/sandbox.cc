#include "jit/worker/sandbox.h"

#include <fcntl.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>

namespace kiln {

namespace {

// A deny list, since LLVM, libc, sanitizers and drivers need more than could be listed in full; what runs unproven code
// has an allow list (executor.c). What is left beyond reading, memory, threads and how they are scheduled, and what needs
// it: clone, execve and open sockets start execution workers and talk to them; ftruncate, fallocate and write fill memory
// files.
constexpr int k_denied[] = {
    // the network, with socket() of other families than AF_UNIX
    SCMP_SYS(connect), SCMP_SYS(accept), SCMP_SYS(accept4),
    // other processes
    SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev), SCMP_SYS(process_madvise),
    SCMP_SYS(kcmp), SCMP_SYS(tkill), SCMP_SYS(rt_sigqueueinfo), SCMP_SYS(rt_tgsigqueueinfo), SCMP_SYS(pidfd_open),
    SCMP_SYS(pidfd_getfd), SCMP_SYS(pidfd_send_signal), SCMP_SYS(shmget), SCMP_SYS(shmat), SCMP_SYS(shmctl),
    SCMP_SYS(msgget), SCMP_SYS(msgctl), SCMP_SYS(semget), SCMP_SYS(semctl),
    // names in the file system
    SCMP_SYS(rmdir), SCMP_SYS(rename), SCMP_SYS(renameat), SCMP_SYS(renameat2), SCMP_SYS(link), SCMP_SYS(linkat),
    SCMP_SYS(symlink), SCMP_SYS(symlinkat), SCMP_SYS(truncate), SCMP_SYS(mknod), SCMP_SYS(mknodat),
    SCMP_SYS(open_by_handle_at),
    // ways around a filter: calls in calls, programs without a name, arguments that it cannot see
    SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register), SCMP_SYS(execveat),
    SCMP_SYS(openat2),
    // the machine
    SCMP_SYS(bpf), SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(fanotify_init), SCMP_SYS(mount),
    SCMP_SYS(umount2), SCMP_SYS(move_mount), SCMP_SYS(open_tree), SCMP_SYS(fsopen), SCMP_SYS(fsconfig),
    SCMP_SYS(fsmount), SCMP_SYS(fspick), SCMP_SYS(mount_setattr), SCMP_SYS(chroot), SCMP_SYS(pivot_root),
    SCMP_SYS(setns), SCMP_SYS(unshare), SCMP_SYS(init_module), SCMP_SYS(finit_module), SCMP_SYS(delete_module),
    SCMP_SYS(kexec_load), SCMP_SYS(kexec_file_load), SCMP_SYS(reboot), SCMP_SYS(swapon), SCMP_SYS(swapoff),
    SCMP_SYS(acct), SCMP_SYS(quotactl), SCMP_SYS(syslog), SCMP_SYS(settimeofday), SCMP_SYS(clock_settime),
    SCMP_SYS(adjtimex), SCMP_SYS(clock_adjtime), SCMP_SYS(sethostname), SCMP_SYS(setdomainname), SCMP_SYS(iopl),
    SCMP_SYS(ioperm), SCMP_SYS(keyctl), SCMP_SYS(add_key), SCMP_SYS(request_key)};

// A device's driver makes sure that a name is free before it begins, and gives up where it may not.
constexpr int k_removing[] = {SCMP_SYS(unlink), SCMP_SYS(unlinkat)};

// It listens on a socket of this host from its start on, whoever may connect.
constexpr int k_of_drivers[] = {
    SCMP_SYS(socket),      SCMP_SYS(bind),         SCMP_SYS(listen),      SCMP_SYS(creat),     SCMP_SYS(mkdir),
    SCMP_SYS(mkdirat),     SCMP_SYS(chmod),        SCMP_SYS(fchmod),      SCMP_SYS(fchmodat),  SCMP_SYS(chown),
    SCMP_SYS(fchown),      SCMP_SYS(lchown),       SCMP_SYS(fchownat),    SCMP_SYS(utime),     SCMP_SYS(utimes),
    SCMP_SYS(futimesat),   SCMP_SYS(utimensat),    SCMP_SYS(setxattr),    SCMP_SYS(lsetxattr), SCMP_SYS(fsetxattr),
    SCMP_SYS(removexattr), SCMP_SYS(lremovexattr), SCMP_SYS(fremovexattr)};

/// Calls that fail, once load() was called.
class Filter {
 public:
  void deny(std::span<const int> calls, int reason = EPERM) {
    for (const int call : calls) deny(call, {}, reason);
  }
  /// Where all of the conditions hold.
  void deny(int call, std::initializer_list<scmp_arg_cmp> conditions, int reason = EPERM) {
    if (m_filter == nullptr) return;
    seccomp_rule_add_array(m_filter.get(), SCMP_ACT_ERRNO(static_cast<unsigned>(reason)), call,
                           static_cast<unsigned>(conditions.size()), conditions.begin());
  }
  void load() {
    if (m_filter != nullptr) seccomp_load(m_filter.get());
  }

 private:
  std::unique_ptr<void, decltype(&seccomp_release)> m_filter{seccomp_init(SCMP_ACT_ALLOW), seccomp_release};
};

scmp_arg_cmp differs(unsigned argument, uint64_t value) { return {argument, SCMP_CMP_NE, value, 0}; }

/// The bits of an int: of the rest of its register the kernel takes no notice.
scmp_arg_cmp has_bits(unsigned argument, uint32_t mask, uint32_t bits) {
  return {argument, SCMP_CMP_MASKED_EQ, mask, bits};
}

}  // namespace

void enter_sandbox() {
  Filter filter;
  filter.deny(k_denied);
  filter.deny(k_removing, ENOENT);
  filter.deny(SCMP_SYS(socket), {differs(0, AF_UNIX)});
  // Execution workers that hang are killed: one by one, and nobody is sent anything else.
  filter.deny(SCMP_SYS(kill), {differs(1, SIGKILL)});
  filter.deny(SCMP_SYS(kill), {has_bits(0, 0x8000'0000U, 0x8000'0000U)});
  filter.deny(SCMP_SYS(kill), {has_bits(0, 0xffff'ffffU, 0)});
  // abort() is a signal to oneself. An execution worker, whose number is another, it ends by another signal.
  filter.deny(SCMP_SYS(tgkill), {differs(0, static_cast<uint64_t>(getpid()))});
  filter.deny(SCMP_SYS(prlimit64), {differs(0, 0)});
  // What is typed into a terminal by a program is run by the shell behind it.
  filter.deny(SCMP_SYS(ioctl), {has_bits(1, 0xffff'ffffU, TIOCSTI)});
  filter.deny(SCMP_SYS(ioctl), {has_bits(1, 0xffff'ffffU, TIOCLINUX)});
  filter.load();
}

void forbid_what_drivers_need() {
  Filter filter;
  filter.deny(k_of_drivers);
  for (const uint32_t flag : std::initializer_list<uint32_t>{O_WRONLY, O_RDWR, O_CREAT, O_TRUNC}) {
    filter.deny(SCMP_SYS(open), {has_bits(1, flag, flag)});
    filter.deny(SCMP_SYS(openat), {has_bits(2, flag, flag)});
  }
  filter.load();
}

}  // namespace kiln
