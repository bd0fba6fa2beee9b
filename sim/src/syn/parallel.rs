// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many runs over the cores: what one run gives depends on its job alone, so neither the number of
//! threads nor the order in which they finish changes a byte.

use rayon::prelude::*;

/// Threads that may be asked for.
const THREADS_MAX: usize = 1024;

/// Runs `job` on each of `jobs`; results in the order of `jobs`. `threads` 0: one a core.
/// `done` is told after each job how many have been done; it may come from any thread.
///
/// # Errors
/// When the threads cannot be started.
pub fn map<J: Sync, R: Send>(
    jobs: &[J],
    threads: usize,
    job: impl Fn(&J) -> R + Sync,
    done: impl Fn(usize) + Sync,
) -> Result<Vec<R>, NoThreads> {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.min(THREADS_MAX))
        .build()
        .map_err(|error| NoThreads(error.to_string()))?;
    let one = |input: &J| {
        let result = job(input);
        done(1 + count.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        result
    };
    Ok(pool.install(|| jobs.par_iter().with_max_len(1).map(one).collect()))
}

/// The threads could not be started; holds the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoThreads(pub String);

impl std::fmt::Display for NoThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot start threads: {}", self.0)
    }
}

impl std::error::Error for NoThreads {}
