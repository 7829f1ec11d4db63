#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "services/front/front_error.h"

namespace ete::front {

// FrontError(invalid_argument) about bytes that are no message of this type. Names the field whose text is
// not UTF-8, where that is what is wrong.
[[noreturn]] void refuse_malformed(const google::protobuf::Descriptor& type, const grpc::ByteBuffer& buffer);

// Messages are bytes to gRPC and parsed here: gRPC would answer one that does not parse, as one whose text is
// not UTF-8, with UNIMPLEMENTED. FrontError(invalid_argument).
template <typename Message>
Message parse(const grpc::ByteBuffer& buffer) {
  Message message;
  grpc::ByteBuffer copy(buffer);  // parsing consumes it; the slices are shared
  if (!grpc::SerializationTraits<Message>::Deserialize(&copy, &message).ok()) {
    refuse_malformed(*Message::descriptor(), buffer);
  }
  return message;
}

template <typename Message>
grpc::ByteBuffer serialize(const Message& message) {
  grpc::ByteBuffer buffer;
  bool own = false;
  if (!grpc::SerializationTraits<Message>::Serialize(message, &buffer, &own).ok()) {
    throw FrontError(FrontErrorCode::internal, "a reply cannot be serialised");
  }
  return buffer;
}

}  // namespace ete::front
