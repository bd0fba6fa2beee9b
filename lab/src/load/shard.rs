// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One process of a load: its job on standard input, messages on standard output.

use super::engine::Engine;
use super::plan::LoadPlan;
use super::report::Progress;
use super::tally::ShardResult;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use tidegate_units::{MonotonicClock, Nanos};

/// Largest job, in bytes.
const JOB_BYTES_MAX: u64 = 256 << 20;

/// What a shard is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) plan: LoadPlan,
    /// Number of this shard, from 0.
    pub(crate) shard: u64,
    /// How many there are.
    pub(crate) shards: u64,
    /// When the run starts, on the machine's monotonic clock.
    pub(crate) start: Nanos,
}

/// What a shard says, one JSON document a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    Progress(Progress),
    Result(ShardResult),
}

fn say(message: &Message) -> Result<(), String> {
    let mut line = serde_json::to_vec(message).map_err(|e| e.to_string())?;
    line.push(b'\n');
    std::io::stdout().lock().write_all(&line).map_err(|e| format!("standard output: {e}"))
}

/// Runs the shard that standard input describes.
pub(crate) fn main() -> Result<(), String> {
    let mut text = String::new();
    let mut input = std::io::stdin().lock().take(JOB_BYTES_MAX);
    input.read_to_string(&mut text).map_err(|e| format!("standard input: {e}"))?;
    let job: Job = serde_json::from_str(&text).map_err(|e| format!("job: {e}"))?;
    let clock = MonotonicClock;
    let shard = (job.shard, job.shards.max(1));
    let engine = Engine::new(&job.plan, &clock, job.start, shard).map_err(|e| e.to_string())?;
    let mut broken = None;
    let result = engine.run(&mut |progress| {
        if let Err(e) = say(&Message::Progress(progress.clone())) {
            broken = Some(e);
        }
    });
    let result = result.map_err(|e| format!("epoll: {e}"))?;
    broken.map_or_else(|| say(&Message::Result(result)), Err)
}
