// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Between the control socket and the owner: a bounded queue of messages, each with its answer's
//! way back. `status` does not disturb the owner: it reads the last snapshot.

use std::sync::Arc;
use tidegate_api::protocol::{ApiError, ErrorKind, HandoverPhase, Reply, Request};
use tidegate_api::server::Handler;
use tidegate_model::snapshot::Snapshot;
use tokio::sync::{mpsc, oneshot, watch};

/// Most messages that wait for the owner.
pub(crate) const MESSAGES_MAX: usize = 64;

/// A request and where the answer goes.
pub(crate) struct Message {
    pub(crate) request: Request,
    pub(crate) answer: oneshot::Sender<Result<Reply, ApiError>>,
}

/// The next request that somebody still waits for: who gave up was told that it was not served.
pub(crate) async fn wanted(messages: &mut mpsc::Receiver<Message>) -> Option<Message> {
    loop {
        let message = messages.recv().await?;
        if !message.answer.is_closed() {
            return Some(message);
        }
    }
}

/// The handler of the control socket.
pub(crate) struct Front {
    pub(crate) owner: mpsc::Sender<Message>,
    pub(crate) snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub(crate) version: String,
}

impl Handler for Front {
    async fn handle(&self, request: Request) -> Result<Reply, ApiError> {
        match request {
            Request::Ping {} => {
                Ok(Reply::Pong { program: self.version.clone(), pid: std::process::id() })
            }
            Request::Status {} => {
                let snapshot = self.snapshots.borrow().clone();
                let snapshot = snapshot
                    .ok_or_else(|| ApiError::new(ErrorKind::Busy, "nothing was sensed yet"))?;
                Ok(Reply::Status { snapshot: Box::new((*snapshot).clone()) })
            }
            request => self.ask_owner(request).await,
        }
    }

    /// A successor that leaves after `begin` does not come.
    async fn left(&self, last: Request) {
        if last == (Request::Handover { phase: HandoverPhase::Begin }) {
            let abort = Request::Handover { phase: HandoverPhase::Abort };
            // An owner that does not get to it goes on by itself, later.
            let _ = self.ask_owner(abort).await;
        }
    }
}

impl Front {
    async fn ask_owner(&self, request: Request) -> Result<Reply, ApiError> {
        let (answer, answered) = oneshot::channel();
        self.owner
            .try_send(Message { request, answer })
            .map_err(|_| ApiError::new(ErrorKind::Busy, "too many requests wait already"))?;
        answered
            .await
            .unwrap_or_else(|_| Err(ApiError::new(ErrorKind::Failed, "the daemon is stopping")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Waker};

    #[test]
    fn what_nobody_waits_for_any_more_is_not_served() {
        let (owner, mut messages) = mpsc::channel(MESSAGES_MAX);
        let (_, snapshots) = watch::channel(None);
        let front = Front { owner, snapshots, version: "test".into() };
        let mut now = Context::from_waker(Waker::noop());
        let mut late = Box::pin(front.handle(Request::Reload { path: None }));
        let mut patient = Box::pin(front.handle(Request::Release { on: true, lasts: None }));
        assert!(late.as_mut().poll(&mut now).is_pending());
        assert!(patient.as_mut().poll(&mut now).is_pending());
        drop(late);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let message = runtime.block_on(wanted(&mut messages)).unwrap();
        assert_eq!(message.request, Request::Release { on: true, lasts: None });
        drop(patient);
        drop(front);
        assert!(runtime.block_on(wanted(&mut messages)).is_none());
    }
}
