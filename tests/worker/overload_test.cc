#include <gtest/gtest.h>

#include "services/common/retry_after.h"
#include "tests/worker/service_fixture.h"

namespace ete::worker {
namespace {

using std::chrono::milliseconds;

TEST(Overload, ARefusalSaysWhenToComeAgain) {
  RunningService running;
  running.engine().refuse_opens(Overloaded("sessions: 16 are active", milliseconds(1234)));
  grpc::ClientContext context;
  const auto stream = running.stub().Session(&context);
  v1::SessionRequest request;
  request.mutable_open()->set_request_id("r");
  request.mutable_open()->add_prompt_ids(1);
  ASSERT_TRUE(stream->Write(request));
  v1::SessionReply reply;
  while (stream->Read(&reply)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "sessions: 16 are active");
  EXPECT_EQ(service::retry_after(context.GetServerTrailingMetadata()), milliseconds(1234));
}

TEST(Overload, ThePriorityIsPassedOnAndChecked) {
  RunningService running;
  const auto open = [&](int priority) {
    Client client(running.stub());
    v1::SessionRequest request;
    request.mutable_open()->set_request_id("r" + std::to_string(priority));
    request.mutable_open()->add_prompt_ids(1);
    request.mutable_open()->set_priority(priority);
    client.send(request);
    client.half_close();
    return client.finish();
  };
  EXPECT_TRUE(open(-10).ok());
  EXPECT_EQ(running.engine().open_requests().back().priority, -10);
  EXPECT_TRUE(open(10).ok());
  for (const int wrong : {-11, 11, 1 << 30}) {
    const grpc::Status status = open(wrong);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find("open.priority: " + std::to_string(wrong)), std::string::npos)
        << status.error_message();
  }
}

// The deadline of a call ends its session wherever it is: here while its prompt waits.
TEST(Overload, ADeadlineEndsAQueuedSession) {
  RunningService running;
  running.engine().hold(true);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(200));
  const auto stream = running.stub().Session(&context);
  v1::SessionRequest request;
  request.mutable_open()->set_request_id("r");
  request.mutable_open()->add_prompt_ids(1);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(eventually([&] { return running.engine().live() == 1; }));
  v1::SessionReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([&] { return running.engine().live() == 0; }));
}

}  // namespace
}  // namespace ete::worker
