#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "services/common/tokenizer_digest.h"
#include "tests/worker/service_fixture.h"

namespace ete::worker {
namespace {

using testing::HasSubstr;

struct Model {
  grpc::Status status;
  std::vector<v1::GetModelReply> replies;
};

Model get_model(v1::Engine::Stub& stub) {
  Model model;
  grpc::ClientContext context;
  const auto reader = stub.GetModel(&context, {});
  v1::GetModelReply reply;
  while (reader->Read(&reply)) model.replies.push_back(reply);
  model.status = reader->Finish();
  return model;
}

v1::GetStatusReply get_status(v1::Engine::Stub& stub) {
  grpc::ClientContext context;
  v1::GetStatusReply reply;
  EXPECT_TRUE(stub.GetStatus(&context, {}, &reply).ok());
  return reply;
}

TEST(GetModel, UnavailableUntilTheFilesAreOpen) {
  RunningService running({}, false);
  const Model model = get_model(running.stub());
  EXPECT_EQ(model.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  running.service().set_model(running.engine().files(), running.engine().plan());
  EXPECT_TRUE(get_model(running.stub()).status.ok())
      << "the files are open, although the model is not loaded";
}

TEST(GetModel, SendsInfoThenTheTokenizer) {
  RunningService running;
  const Model model = get_model(running.stub());
  ASSERT_TRUE(model.status.ok());
  ASSERT_EQ(model.replies.size(), 2u);
  ASSERT_TRUE(model.replies[0].has_info());
  const v1::ModelInfo& info = model.replies[0].info();
  EXPECT_EQ(info.name(), "fake");
  EXPECT_EQ(info.architecture(), "FakeForCausalLM");
  EXPECT_EQ(info.vocab_size(), 1000);
  EXPECT_EQ(info.context(), 4096);
  EXPECT_EQ(info.max_sessions(), 16);
  EXPECT_THAT(info.eos_token_ids(), testing::ElementsAre(2, 3));
  EXPECT_THAT(info.plan_json(), HasSubstr("\"fake\""));
  EXPECT_EQ(info.worker_id(), get_status(running.stub()).worker_id());
  EXPECT_EQ(info.worker_id().size(), 32u);
  EXPECT_EQ(model.replies[1].file().name(), "tokenizer.json");
  EXPECT_EQ(model.replies[1].file().data(), "{}");
  service::TokenizerDigest digest;
  digest.add(model.replies[1].file());
  EXPECT_EQ(info.tokenizer_sha256(), digest.finish());
}

TEST(GetStatus, IsAnsweredInEveryState) {
  RunningService running({}, false);
  running.service().report_progress(0.25, "packing layer 3");
  v1::GetStatusReply status = get_status(running.stub());
  EXPECT_EQ(status.state(), v1::GetStatusReply::LOADING);
  EXPECT_EQ(status.load_fraction(), 0.25);
  EXPECT_EQ(status.load_step(), "packing layer 3");
  EXPECT_GT(status.resident_set_bytes(), 1'000'000u);
  EXPECT_EQ(status.plan_json(), "");

  running.serve();
  Client client(running.stub());
  v1::SessionReply reply;
  client.open("r1", {1});
  ASSERT_TRUE(client.read(reply) && client.read(reply));
  status = get_status(running.stub());
  EXPECT_EQ(status.state(), v1::GetStatusReply::SERVING);
  EXPECT_EQ(status.load_fraction(), 1);
  EXPECT_EQ(status.load_step(), "");
  EXPECT_EQ(status.sessions(), 1);
  EXPECT_EQ(status.passes(), 1u);
  EXPECT_EQ(status.session_bytes(), 1024u);
  EXPECT_EQ(status.prefix_cache_bytes(), 2048u);
  EXPECT_EQ(status.prefix_lookups(), 5u);
  EXPECT_EQ(status.prefix_hits(), 4u);
  EXPECT_EQ(status.reused_tokens(), 300u);
  EXPECT_EQ(status.queued(), 6);
  EXPECT_EQ(status.queued_tokens(), 7);
  EXPECT_EQ(status.pass_ms(), 1250);
  EXPECT_EQ(status.last_pass_ms(), 10);
  EXPECT_EQ(status.last_pass_rows(), 11);
  EXPECT_EQ(status.decode_rows(), 12u);
  EXPECT_EQ(status.prefill_rows(), 13u);
  EXPECT_EQ(status.link_bytes(), 14u);
  EXPECT_EQ(status.device_bytes(), 15u);
  EXPECT_EQ(status.link_idle_share(), 0.375);
  EXPECT_THAT(status.plan_json(), HasSubstr("\"fake\""));

  client.half_close();
  EXPECT_TRUE(client.finish().ok());
  running.service().drain(std::chrono::milliseconds(1000));
  EXPECT_EQ(get_status(running.stub()).state(), v1::GetStatusReply::DRAINING);
}

TEST(GetStatus, WorkersHaveIdsOfTheirOwn) {
  RunningService first;
  RunningService second;
  EXPECT_NE(get_status(first.stub()).worker_id(), get_status(second.stub()).worker_id());
}

TEST(Abort, OfAnUnknownIdIsOk) {
  RunningService running;
  for (const std::string id : {"", "nobody"}) {
    grpc::ClientContext context;
    v1::AbortRequest request;
    request.set_request_id(id);
    v1::AbortReply reply;
    EXPECT_TRUE(running.stub().Abort(&context, request, &reply).ok());
    EXPECT_EQ(reply.aborted(), 0);
  }
}

TEST(Health, NotServingUntilReady) {
  RunningService running({}, false);
  EXPECT_EQ(health(running.channel()), kNotServing);
  running.serve();
  EXPECT_EQ(health(running.channel()), kServing);
  running.server().set_serving(false);
  EXPECT_EQ(health(running.channel()), kNotServing);
}

TEST(ListeningServer, SocketIsPrivateAndRemovedAtTheEnd) {
  const TempDir directory;
  const std::string path = directory / "with space%41.sock";
  struct stat info {};
  {
    const service::ListeningServer server({service::parse_address("unix:" + path)}, {});
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_TRUE(S_ISSOCK(info.st_mode));
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_NE(stat(path.c_str(), &info), 0);
}

TEST(ListeningServer, LeavesALiveServerAlone) {
  const TempDir directory;
  const service::Address address = service::parse_address("unix:" + (directory / "s"));
  const service::ListeningServer first({address}, {});
  try {
    const service::ListeningServer second({address}, {});
    FAIL() << "two servers at one path";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("another process listens"));
  }
  EXPECT_EQ(health(grpc::CreateChannel(address.grpc_target(), grpc::InsecureChannelCredentials())),
            kNotServing);
}

TEST(ListeningServer, TellsTheChosenPortAndKeepsItToItself) {
  const service::ListeningServer first({service::parse_address("127.0.0.1:0")}, {});
  EXPECT_GT(first.address().port, 0);
  EXPECT_THROW(service::ListeningServer({first.address()}, {}), std::runtime_error);
}

}  // namespace
}  // namespace ete::worker
