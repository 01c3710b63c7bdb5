// The module lowtide._native: one bind function per part.
#include <system_error>

#include "bindings/bindings.hpp"

NB_MODULE(_native, m) {
  m.doc() = "lowtide's native core";
  // A worker process that exits while holding a dataset would print many leak warnings.
  nanobind::set_leak_warnings(false);
  // An error of the operating system reaches Python as OSError(errno, message, path).
  nanobind::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const std::system_error& error) {
      std::string what = error.what();  // "PATH: message"
      const std::string tail = ": " + error.code().message();
      if (what.size() > tail.size() && what.ends_with(tail)) {
        what.resize(what.size() - tail.size());
      }
      // File names may not be UTF-8.
      const nanobind::object name = nanobind::steal(PyUnicode_DecodeFSDefault(what.c_str()));
      nanobind::object value =
          nanobind::make_tuple(error.code().value(), error.code().message().c_str(), name);
      PyErr_SetObject(PyExc_OSError, value.ptr());
    }
  });
  lowtide::bind_classifier(m);
  lowtide::bind_corpus(m);
  lowtide::bind_dataset(m);
  lowtide::bind_learning(m);
  lowtide::bind_loader(m);
  lowtide::bind_decoder(m);
  lowtide::bind_model(m);
  lowtide::bind_near_copies(m);
  lowtide::bind_testing(m);
  lowtide::bind_tokenizer(m);
  lowtide::bind_vocabulary_files(m);
}
