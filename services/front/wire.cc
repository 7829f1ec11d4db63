#include "services/front/wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>

#include <vector>

#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// Throws for the first string, at any depth, that is not UTF-8. No message of the protocol holds its own
// kind.
void require_texts(const google::protobuf::Descriptor& type, const UnknownFieldSet& fields,
                   const std::string& path) {
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const FieldDescriptor* known = type.FindFieldByNumber(field.number());
    if (known == nullptr || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    const std::string& bytes = field.length_delimited();
    const std::string name = path + known->name();
    if (known->type() == FieldDescriptor::TYPE_STRING) require_utf8(bytes, name);
    UnknownFieldSet inner;
    if (known->type() == FieldDescriptor::TYPE_MESSAGE && inner.ParseFromString(bytes)) {
      require_texts(*known->message_type(), inner, name + ".");
    }
  }
}

}  // namespace

void refuse_malformed(const google::protobuf::Descriptor& type, const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (buffer.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  UnknownFieldSet fields;
  if (fields.ParseFromString(bytes)) require_texts(type, fields, "");
  throw FrontError(FrontErrorCode::invalid_argument, "the request is not a valid " + type.full_name() +
                                                         ": text must be UTF-8, and every field well formed");
}

}  // namespace ete::front
