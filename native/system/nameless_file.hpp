// An anonymous temporary file (O_TMPFILE where available), which disappears when it is closed.
#pragma once

#include <fcntl.h>

#include <cerrno>

namespace lowtide {

// Returns an open file on the disk of `folder`, or -1 with errno: EOPNOTSUPP without O_TMPFILE.
inline int open_nameless_file([[maybe_unused]] const char* folder) {
#if defined(O_TMPFILE)
  return ::open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#else
  errno = EOPNOTSUPP;
  return -1;
#endif
}

}  // namespace lowtide
