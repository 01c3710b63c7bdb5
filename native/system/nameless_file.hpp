// A file without a name, which is gone when it is closed, where the system has that.
#pragma once

#include <fcntl.h>

#include <cerrno>

namespace lowtide {

// An open file on the disk of `folder`, or -1 with errno: EOPNOTSUPP where only names are known.
inline int open_nameless_file([[maybe_unused]] const char* folder) {
#if defined(O_TMPFILE)
  return ::open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#else
  errno = EOPNOTSUPP;
  return -1;
#endif
}

}  // namespace lowtide
