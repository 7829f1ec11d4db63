#include "services/front/worker_session.h"

#include <utility>

#include "services/common/retry_after.h"
#include "services/front/status.h"

namespace ete::front {

WorkerSession::WorkerSession(Link link, std::shared_ptr<Events> events)
    : link_(std::move(link)), events_(std::move(events)) {}

std::shared_ptr<WorkerSession> WorkerSession::start(Link link,
                                                    const std::function<void(grpc::ClientContext&)>& prepare,
                                                    std::shared_ptr<Events> events) {
  std::shared_ptr<WorkerSession> session(new WorkerSession(std::move(link), std::move(events)));
  session->self_ = session;
  prepare(session->context_);
  session->link_.stub->async()->Session(&session->context_, session.get());
  // Writes begin outside of reactions; the hold keeps the stream from ending under one that is about to.
  session->AddHold();
  session->StartRead(&session->reply_);
  session->StartCall();
  return session;
}

void WorkerSession::send(v1::SessionRequest request) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || half_close_) return;
    queue_.push_back(std::move(request));
    if (writing_) return;
    writing_ = true;
  }
  write_next();
}

void WorkerSession::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || half_close_) return;
    half_close_ = true;
    if (writing_) return;
    writing_ = true;
  }
  write_next();
}

void WorkerSession::cancel() { context_.TryCancel(); }

// The caller set writing_, or is its operation's end.
void WorkerSession::write_next() {
  bool write = false, close = false, release = false;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_ && !queue_.empty()) {
      request_ = std::move(queue_.front());
      queue_.pop_front();
      write = true;
    } else if (!ended_ && half_close_ && !half_closed_) {
      half_closed_ = true;
      close = true;
    } else {
      writing_ = false;
      release = ended_;
    }
  }
  if (write) StartWrite(&request_);
  if (close) StartWritesDone();
  if (release) RemoveHold();
}

void WorkerSession::OnWriteDone(bool /*ok*/) { write_next(); }

void WorkerSession::OnWritesDoneDone(bool /*ok*/) { write_next(); }

void WorkerSession::OnReadDone(bool ok) {
  if (ok) {
    events_->on_session_reply(std::exchange(reply_, {}));
    StartRead(&reply_);
    return;
  }
  bool release = false;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    release = !writing_;
  }
  if (release) RemoveHold();
}

void WorkerSession::OnDone(const grpc::Status& status) {
  const std::shared_ptr<WorkerSession> self = std::move(self_);
  const FrontError reason = from_status(status, link_.worker);
  events_->on_session_end(reason.after(service::retry_after(context_.GetServerTrailingMetadata())));
  events_.reset();
  link_.on_done();
}

}  // namespace ete::front
