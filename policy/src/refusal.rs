// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a router refuses, by the class of the client, and the filter that Abacus needs (`policy/chain/refusal.h`).
#![allow(unsafe_code, reason = "the policies are C")]

use crate::abi::{self, AbacusExactParams, Event, Verdict as RawVerdict};
use crate::{AbacusExactSpec, ParamsError, Verdict};
use zerocopy::IntoBytes;

/// Words of `struct tg_crowd_filter`.
const WORDS: usize = size_of::<abi::CrowdFilter>() / 8;

/// How a client is refused (`enum tg_crowd_action`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrowdAction {
    /// Nothing is sent.
    #[default]
    Drop,
    /// A RST is sent.
    Reset,
    /// Dropped if there is room when it comes back, else a RST.
    Abacus,
}

impl CrowdAction {
    /// As the kernel has it.
    #[must_use]
    pub const fn code(self) -> u8 {
        let code = match self {
            Self::Drop => abi::TG_CROWD_DROP,
            Self::Reset => abi::TG_CROWD_RESET,
            Self::Abacus => abi::TG_CROWD_ABACUS,
        };
        code as u8
    }
}

impl AbacusExactSpec {
    /// The parameters of a filter, as the kernel has them (`struct tg_abacus_exact_params`): a repeated attempt of
    /// another class leaves half of the bucket.
    ///
    /// # Errors
    /// When the bucket, schedule, window or period are out of range.
    pub fn filter(&self) -> Result<[u8; size_of::<AbacusExactParams>()], ParamsError> {
        Ok(zerocopy::transmute!(self.of_filter()?))
    }

    fn of_filter(&self) -> Result<AbacusExactParams, ParamsError> {
        let mut params = self.compile()?;
        let half = params.bucket.depth / 2;
        params.reserve = std::array::from_fn(|priority| if priority == 0 { 0 } else { half });
        Ok(params)
    }
}

/// A filter (`struct tg_crowd_filter`).
#[derive(Clone, PartialEq, Eq)]
pub struct CrowdFilter {
    params: AbacusExactParams,
    words: Box<[u64]>,
}

impl std::fmt::Debug for CrowdFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self.words.iter().filter(|word| **word != 0).count();
        write!(f, "CrowdFilter({used} of {} words used)", self.words.len())
    }
}

impl CrowdFilter {
    /// A filter that has seen nobody.
    ///
    /// # Errors
    /// When the bucket, schedule, window or period are out of range.
    pub fn new(spec: &AbacusExactSpec) -> Result<Self, ParamsError> {
        let words = vec![0; WORDS].into_boxed_slice();
        Ok(Self { params: spec.of_filter()?, words })
    }

    /// As it lies in the kernel's map.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.words.as_bytes()
    }

    /// Other parameters. What was used stays used, and who is known stays known.
    ///
    /// # Errors
    /// As [`Self::new`]; then nothing changes.
    pub fn set(&mut self, spec: &AbacusExactSpec) -> Result<(), ParamsError> {
        self.params = spec.of_filter()?;
        Ok(())
    }

    /// The verdict on a SYN of a client that is refused like this. `event.key` is the same for all copies of one SYN;
    /// a priority above 0 says that this one was refused before.
    #[must_use]
    pub fn admit(&mut self, action: CrowdAction, event: &Event) -> Verdict {
        let mut raw = RawVerdict::default();
        let (params, filter) = (&raw const self.params, self.words.as_mut_ptr().cast());
        // SAFETY: the words have size and alignment of the C structure and are exclusively borrowed.
        unsafe {
            abi::tg_native_crowd_filtered(params, filter, action.code().into(), event, &mut raw);
        }
        raw.into()
    }
}
