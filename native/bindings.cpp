#include <nanobind/nanobind.h>

namespace lowtide {
void bind_loader(nanobind::module_& m);
}  // namespace lowtide

NB_MODULE(_native, m) {
  m.doc() = "lowtide's native core";
  lowtide::bind_loader(m);
}
