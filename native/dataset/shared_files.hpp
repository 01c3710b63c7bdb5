// Files that several threads read by ranges, opened on first use.
//
// File descriptors stay open for the next reader up to a limit for the process; beyond it a file is
// opened and closed for each use.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lowtide {

class SharedFiles {
 public:
  static constexpr size_t kMostBuffers =
      64;  // of one read; systems allow 1,024, POSIX guarantees 16

  // `paths` must outlive this.
  explicit SharedFiles(const std::vector<std::string>& paths);
  ~SharedFiles();
  SharedFiles(const SharedFiles&) = delete;
  SharedFiles& operator=(const SharedFiles&) = delete;

  // One open file. Failures to open or read are a std::system_error that names it.
  class Use {
   public:
    Use(SharedFiles& files, size_t file, size_t max_open_files);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    // Fill `buffers`, at most kMostBuffers, from `offset` on; modifies them.
    void read(uint64_t offset, std::vector<iovec>& buffers) const;

   private:
    const std::string& path_;
    int descriptor_;
    bool is_kept_;
  };

 private:
  int find(size_t file) const;  // -1 where it is not open
  int keep(size_t file, int descriptor, size_t max_open_files);

  const std::vector<std::string>& paths_;
  std::vector<std::atomic<int>> descriptors_;  // -1: not open
};

}  // namespace lowtide
