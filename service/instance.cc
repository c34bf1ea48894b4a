#include "service/instance.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "base/process_identity.h"

namespace kiln {
namespace {

constexpr auto k_poll_interval = std::chrono::milliseconds(10);

bool somebody_listens(const std::string& socket_path) {
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN;
}

}  // namespace

bool Instance::is_in_force() const {
  struct stat held{}, there{};
  return fstat(m_file.get(), &held) == 0 && lstat(m_path.c_str(), &there) == 0 && held.st_ino == there.st_ino &&
         held.st_dev == there.st_dev;
}

Expected<Instance> Instance::acquire(const std::string& cache_directory, const std::string& socket_path,
                                     uint64_t timeout_ms, bool owns_socket) {
  const std::string path = cache_directory + "/kilnd.lock";
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) {
    return error(errno == EACCES ? StatusCode::permission_denied : StatusCode::unavailable, "{}: {}", path,
                 std::strerror(errno));
  }
  const Deadline deadline = deadline_in(timeout_ms);
  while (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return error(StatusCode::unavailable, "locking {}: {}", path, std::strerror(errno));
    }
    if (!owns_socket && somebody_listens(socket_path))
      return error(StatusCode::already_exists, "a daemon serves {} already", cache_directory);
    if (Clock::now() >= deadline) {
      return error(StatusCode::unavailable, "another daemon holds {} and does not answer at {}; kiln daemon stop", path,
                   socket_path);
    }
    std::this_thread::sleep_for(k_poll_interval);
  }
  // Who holds it is for kiln daemon stop; on a full disk nobody is told.
  const std::string holder = ProcessIdentity::of(getpid()).value_or(ProcessIdentity{.pid = getpid()}).to_text();
  if (ftruncate(file.get(), 0) != 0 || pwrite(file.get(), holder.data(), holder.size(), 0) < 0) errno = 0;
  Instance instance(path, std::move(file));
  if (!instance.is_in_force()) return error(StatusCode::unavailable, "{} was removed meanwhile", cache_directory);
  return instance;
}

}  // namespace kiln
