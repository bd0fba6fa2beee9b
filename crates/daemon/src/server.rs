// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Between the control socket and the owner: a bounded queue of messages, each with its answer's
//! way back. `status` does not disturb the owner: it reads the last snapshot.

use std::sync::Arc;
use tidegate_api::protocol::{ApiError, ErrorKind, Reply, Request};
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
