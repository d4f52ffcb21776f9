// The structs are those of Arrow's specification, whose layout is an ABI. Whoever gets one calls
// its release once; children and dictionaries may outlive the parent, so each keeps what it points
// to.
#include "arrow_export.h"

#include <nanobind/ndarray.h>

#include <cerrno>
#include <limits>
#include <stdexcept>

#include "base/text.h"
#include "offline_call.h"

extern "C" {
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  std::int64_t flags;
  std::int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};
struct ArrowArray {
  std::int64_t length;
  std::int64_t null_count;
  std::int64_t offset;
  std::int64_t n_buffers;
  std::int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};
struct ArrowArrayStream {
  int (*get_schema)(ArrowArrayStream*, ArrowSchema*);
  int (*get_next)(ArrowArrayStream*, ArrowArray*);
  const char* (*get_last_error)(ArrowArrayStream*);
  void (*release)(ArrowArrayStream*);
  void* private_data;
};
}

namespace trainmon {

namespace nb = nanobind;

namespace {

constexpr std::int64_t kNullable = 2;  // ARROW_FLAG_NULLABLE

const char* format_of(const std::vector<std::int32_t>&) {
  return "i";
}
const char* format_of(const std::vector<std::int64_t>&) {
  return "l";
}
const char* format_of(const std::vector<std::uint32_t>&) {
  return "I";
}
const char* format_of(const std::vector<std::uint64_t>&) {
  return "L";
}
const char* format_of(const std::vector<double>&) {
  return "g";
}

// Text with each byte that is not part of a character of UTF-8 as "\xff".
std::string escaped(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = decode_utf8(text, at).length;
    if (length > 0) {
      out += text.substr(at, length);
      at += length;
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[at++]);
    out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

// What a struct of Arrow owns. Children are released with it, unless a consumer took them.
template <typename Struct>
struct Owned {
  std::string name;
  std::shared_ptr<const void> memory;
  std::vector<std::uint8_t> bits;
  std::vector<std::int32_t> codes;
  std::vector<const void*> buffers;
  std::vector<std::unique_ptr<Struct>> parts;
  std::vector<Struct*> children;
  std::unique_ptr<Struct> dictionary;

  ~Owned() {
    for (const std::unique_ptr<Struct>& part : parts) let_go(*part);
    if (dictionary) let_go(*dictionary);
  }
  static void let_go(Struct& part) {
    if (part.release != nullptr) part.release(&part);
  }
  Struct& add_child() {
    parts.push_back(std::make_unique<Struct>());
    children.push_back(parts.back().get());
    return *parts.back();
  }
};

// Fills in what `out` owns.
template <typename Struct>
void own(Struct& out, std::unique_ptr<Owned<Struct>> owned) {
  out.n_children = static_cast<std::int64_t>(owned->children.size());
  out.children = owned->children.empty() ? nullptr : owned->children.data();
  out.dictionary = owned->dictionary.get();
  out.release = [](Struct* released) {
    delete static_cast<Owned<Struct>*>(released->private_data);
    released->private_data = nullptr;
    released->release = nullptr;
  };
  out.private_data = owned.release();
}

void export_field(const Column& column, ArrowSchema& out) {
  auto owned = std::make_unique<Owned<ArrowSchema>>();
  owned->name = escaped(column.name);
  if (column.texts) {
    owned->dictionary = std::make_unique<ArrowSchema>();
    owned->dictionary->format = "u";
    owned->dictionary->name = "";
    owned->dictionary->flags = kNullable;
    own(*owned->dictionary, std::make_unique<Owned<ArrowSchema>>());
  }
  out = {};
  out.format = std::visit([](const auto& values) { return format_of(values); }, column.values);
  out.name = owned->name.c_str();
  out.flags = kNullable;
  own(out, std::move(owned));
}

void export_schema(const std::vector<std::shared_ptr<Column>>& columns, ArrowSchema& out) {
  auto owned = std::make_unique<Owned<ArrowSchema>>();
  for (const auto& column : columns) export_field(*column, owned->add_child());
  out = {};
  out.format = "+s";
  out.name = "";
  own(out, std::move(owned));
}

void fill_array(ArrowArray& out, std::int64_t length, std::int64_t nulls,
                std::unique_ptr<Owned<ArrowArray>> owned) {
  out = {};
  out.length = length;
  out.null_count = nulls;
  out.n_buffers = static_cast<std::int64_t>(owned->buffers.size());
  out.buffers = owned->buffers.data();
  own(out, std::move(owned));
}

// Consumers may ask for the address even of what is empty.
template <typename T>
const void* address(const T& memory) {
  static constexpr std::int64_t kNothing = 0;
  return memory.empty() ? static_cast<const void*>(&kNothing) : memory.data();
}

void export_texts(const std::shared_ptr<const Texts>& texts, ArrowArray& out) {
  auto owned = std::make_unique<Owned<ArrowArray>>();
  owned->memory = texts;
  owned->buffers = {nullptr, texts->offsets.data(), address(texts->bytes)};
  fill_array(out, std::ssize(texts->offsets) - 1, 0, std::move(owned));
}

void export_column(const std::shared_ptr<const Column>& column, std::int64_t rows,
                   ArrowArray& out) {
  auto owned = std::make_unique<Owned<ArrowArray>>();
  owned->memory = column;
  std::int64_t nulls = 0;
  if (!column->are_unknown.empty()) {
    owned->bits.resize((column->are_unknown.size() + 7) / 8);
    for (std::size_t i = 0; i < column->are_unknown.size(); ++i) {
      if (column->are_unknown[i] != 0) {
        ++nulls;
      } else {
        owned->bits[i / 8] = static_cast<std::uint8_t>(owned->bits[i / 8] | 1u << i % 8);
      }
    }
  }
  const void* values =
      std::visit([](const auto& numbers) { return address(numbers); }, column->values);
  if (column->texts && !column->texts->places.empty()) {
    for (const std::int32_t code : std::get<std::vector<std::int32_t>>(column->values)) {
      owned->codes.push_back(column->texts->places[static_cast<std::size_t>(code)]);
    }
    values = address(owned->codes);
  }
  owned->buffers = {nulls > 0 ? owned->bits.data() : nullptr, values};
  if (column->texts) {
    owned->dictionary = std::make_unique<ArrowArray>();
    export_texts(column->texts, *owned->dictionary);
  }
  fill_array(out, rows, nulls, std::move(owned));
}

void export_table(const ColumnTable& table, ArrowArray& out) {
  auto owned = std::make_unique<Owned<ArrowArray>>();
  owned->buffers = {nullptr};
  for (const auto& column : table.columns) export_column(column, table.rows, owned->add_child());
  fill_array(out, table.rows, 0, std::move(owned));
}

// What a stream owns.
struct Stream {
  std::vector<std::shared_ptr<Column>> columns;  // without values
  NextTable next;
  std::string error;

  // No exception may pass through a consumer, which is C to us.
  template <typename Action>
  static int guarded(ArrowArrayStream* stream, const Action& action) {
    auto& self = *static_cast<Stream*>(stream->private_data);
    try {
      action(self);
      return 0;
    } catch (const std::bad_alloc&) {
      return ENOMEM;
    } catch (const std::exception& failure) {
      self.error = failure.what();
      return EIO;
    }
  }
};

void fill_stream(ArrowArrayStream& out, std::unique_ptr<Stream> owned) {
  out.get_schema = [](ArrowArrayStream* stream, ArrowSchema* schema) {
    return Stream::guarded(stream, [&](Stream& self) { export_schema(self.columns, *schema); });
  };
  out.get_next = [](ArrowArrayStream* stream, ArrowArray* array) {
    return Stream::guarded(stream, [&](Stream& self) {
      *array = {};
      if (const auto table = self.next()) export_table(*table, *array);
    });
  };
  out.get_last_error = [](ArrowArrayStream* stream) -> const char* {
    const std::string& error = static_cast<Stream*>(stream->private_data)->error;
    return error.empty() ? nullptr : error.c_str();
  };
  out.release = [](ArrowArrayStream* stream) {
    delete static_cast<Stream*>(stream->private_data);
    stream->private_data = nullptr;
    stream->release = nullptr;
  };
  out.private_data = owned.release();
}

// The capsule lets go of what nobody took out of it.
template <typename Struct>
nb::object capsule(std::unique_ptr<Struct> content, const char* name) {
  PyObject* made = PyCapsule_New(content.get(), name, [](PyObject* self) {
    const std::unique_ptr<Struct> held(
        static_cast<Struct*>(PyCapsule_GetPointer(self, PyCapsule_GetName(self))));
    if (held && held->release != nullptr) held->release(held.get());
  });
  if (made == nullptr) {
    content->release(content.get());
    throw nb::python_error();
  }
  content.release();
  return nb::steal(made);
}

template <typename T>
nb::object numpy_array(const std::shared_ptr<Column>& column, std::vector<T>& values) {
  auto* held = new std::shared_ptr<Column>(column);
  const nb::capsule owner(
      held, [](void* p) noexcept { delete static_cast<std::shared_ptr<Column>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(values.data(), {values.size()}, owner));
}

}  // namespace

Texts::Texts(std::vector<std::string> texts) : all(std::move(texts)) {
  std::unordered_map<std::string, std::int32_t> known;
  bool are_distinct = true;
  for (const std::string& text : all) {
    std::string valid = escaped(text);
    const auto [at, is_new] = known.try_emplace(valid, static_cast<std::int32_t>(known.size()));
    places.push_back(at->second);
    are_distinct = are_distinct && is_new;
    if (!is_new) continue;
    bytes += valid;
    if (bytes.size() > std::numeric_limits<std::int32_t>::max()) {
      throw std::length_error("the names of a run have more than 2 GiB");
    }
    offsets.push_back(static_cast<std::int32_t>(bytes.size()));
  }
  if (are_distinct) places.clear();
}

std::int32_t TextCoder::code(std::string_view text) {
  const auto [at, is_new] =
      known_.try_emplace(std::string(text), static_cast<std::int32_t>(known_.size()));
  if (is_new) all_.push_back(at->first);
  return at->second;
}

std::shared_ptr<const Texts> TextCoder::texts() {
  if (!texts_ || texts_->all.size() != all_.size()) texts_ = std::make_shared<const Texts>(all_);
  return texts_;
}

nb::dict numpy_columns(const ColumnTable& table) {
  nb::dict out;
  for (const std::shared_ptr<Column>& column : table.columns) {
    nb::object array =
        std::visit([&](auto& values) { return numpy_array(column, values); }, column->values);
    if (column->texts) {
      nb::list names;
      for (const std::string& name : column->texts->all) names.append(text(name));
      array = nb::make_tuple(array, names);
    } else if (!column->are_unknown.empty()) {
      const nb::object mask = numpy_array(column, column->are_unknown).attr("view")("bool");
      array = nb::module_::import_("numpy.ma").attr("MaskedArray")(array, mask);
    }
    out[text(column->name)] = array;
  }
  return out;
}

nb::object arrow_schema(const ColumnTable& table) {
  auto schema = std::make_unique<ArrowSchema>();
  export_schema(table.columns, *schema);
  return capsule(std::move(schema), "arrow_schema");
}

nb::object arrow_stream(const ColumnTable& like, NextTable next) {
  auto owned = std::make_unique<Stream>();
  for (const auto& column : like.columns) {
    auto empty = std::make_shared<Column>();
    empty->name = column->name;
    std::visit([&](const auto& values) { empty->values = std::decay_t<decltype(values)>(); },
               column->values);
    empty->texts = column->texts;
    owned->columns.push_back(std::move(empty));
  }
  owned->next = std::move(next);
  auto stream = std::make_unique<ArrowArrayStream>();
  fill_stream(*stream, std::move(owned));
  return capsule(std::move(stream), "arrow_array_stream");
}

nb::object arrow_stream(std::shared_ptr<const ColumnTable> table) {
  const ColumnTable& like = *table;
  return arrow_stream(like,
                      [left = std::move(table)]() mutable { return std::exchange(left, {}); });
}

}  // namespace trainmon
