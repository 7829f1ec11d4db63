#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "services/front/front_error.h"

namespace ete::front {

// Messages are bytes to gRPC and parsed here: gRPC would answer one that does not parse, as one whose text is
// not UTF-8, with UNIMPLEMENTED. FrontError(invalid_argument).
template <typename Message>
Message parse(const grpc::ByteBuffer& buffer) {
  Message message;
  grpc::ByteBuffer copy(buffer);  // parsing consumes it; the slices are shared
  if (!grpc::SerializationTraits<Message>::Deserialize(&copy, &message).ok()) {
    throw FrontError(FrontErrorCode::invalid_argument,
                     "the request is not a valid " + std::string(Message::descriptor()->full_name()) +
                         ": text must be UTF-8, and every field well formed");
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
