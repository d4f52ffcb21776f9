// An output that has its name only when it is whole.
#pragma once

#include <filesystem>
#include <string>

namespace trainmon {

// Its name is `to`, which is replaced where `overwrite` is true. Makes a name beside `to` for what
// is being written; removes what stands there again unless it was published. Leftovers of processes
// that were killed are removed at the start.
class Staging {
 public:
  // Throws std::runtime_error when `to` exists and `overwrite` is false. Throws it also when `to`
  // is something that no conversion to a directory, or to a database, has made. So does publish().
  Staging(std::filesystem::path to, bool is_directory, bool overwrite);
  ~Staging() { remove(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Gives it its name, in one step where the file system can exchange names.
  void publish();
  // As the destructor.
  void remove() noexcept;

 private:
  const std::filesystem::path to_;
  const bool is_directory_;
  const bool overwrite_;
  std::filesystem::path path_;
};

}  // namespace trainmon
