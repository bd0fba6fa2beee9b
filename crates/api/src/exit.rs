// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exit codes of the program (docs/cli.md).

use crate::client::ClientError;
use crate::protocol::ErrorKind;

/// An exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Could not be done; the message says why.
    Failure = 1,
    /// Wrong arguments.
    Usage = 2,
    /// The configuration is invalid; nothing was changed.
    Config = 3,
    /// No daemon answers on the control socket, or it is busy.
    Unreachable = 4,
    /// The caller may not use the control socket.
    Permission = 5,
    /// Daemon and command speak different versions of the protocol.
    Version = 6,
    /// No such service.
    NotFound = 7,
    /// A claim was judged and does not hold.
    ClaimFails = 8,
}

impl Exit {
    /// All codes and what they mean, for docs/cli.md.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::Ok, "done"),
        (Self::Failure, "could not be done; the message says why"),
        (Self::Usage, "wrong arguments"),
        (
            Self::Config,
            "the configuration is invalid, or (`check`) does not fit this system; nothing was changed",
        ),
        (Self::Unreachable, "no daemon answers on the control socket, or it is busy"),
        (Self::Permission, "the caller may not use the control socket"),
        (Self::Version, "daemon and command speak different versions of the protocol"),
        (Self::NotFound, "no such service"),
        (Self::ClaimFails, "a claim was judged and does not hold"),
    ];

    /// As a number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::ConfigInvalid => Self::Config,
            ErrorKind::UnknownService => Self::NotFound,
            ErrorKind::Version => Self::Version,
            ErrorKind::Permission => Self::Permission,
            ErrorKind::Busy => Self::Unreachable,
            ErrorKind::BadRequest | ErrorKind::TooLong | ErrorKind::Failed => Self::Failure,
        }
    }
}

impl From<&ClientError> for Exit {
    fn from(error: &ClientError) -> Self {
        match error {
            ClientError::NoDaemon { .. } | ClientError::Silent { .. } => Self::Unreachable,
            ClientError::Permission { .. } => Self::Permission,
            ClientError::Refused(error) => error.kind.into(),
            ClientError::Broken { .. } => Self::Failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_a_busy_daemon_says_that_it_may_be_busy() {
        let exit = Exit::from(ErrorKind::Busy);
        let (_, meaning) = Exit::ALL.into_iter().find(|(code, _)| *code == exit).unwrap();
        assert!(meaning.contains("busy"), "{meaning}");
    }
}
