// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate detach`: what was detached, a line each.

use crate::args::Output;
use crate::format::{Format, json, plain};
use crate::host::Host;
use clap::{ArgAction, Args};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use tidegate_api::exit::Exit;
use tidegate_config::PINS_DEFAULT;

/// Arguments of `detach`.
#[derive(Clone, Debug, Args)]
pub struct DetachArgs {
    /// The directory of the pins: what belongs to them is detached.
    #[arg(long, default_value = PINS_DEFAULT)]
    pub pins: PathBuf,
    /// Also what belongs to other pins, or to none any more, where nobody renews the lease.
    #[arg(long, action = ArgAction::SetTrue)]
    pub orphans: bool,
    /// Only say what would be detached.
    #[arg(long, action = ArgAction::SetTrue)]
    pub dry_run: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// What was done, as a document.
#[derive(Serialize)]
struct Document<'a> {
    dry_run: bool,
    removed: &'a [String],
    left: &'a [String],
    orphans: usize,
}

pub(crate) fn detach(
    args: &DetachArgs,
    host: &dyn Host,
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    let done = host.detach(args)?;
    let exit = if done.left.is_empty() { Exit::Ok } else { Exit::Failure };
    if args.output.output == Format::Json {
        let (dry_run, removed, left) = (args.dry_run, &*done.removed, &*done.left);
        let document = Document { dry_run, removed, left, orphans: done.orphans };
        json("tidegate-detach/1", &document, out)?;
        return Ok(exit);
    }
    let what = if args.dry_run { "would detach" } else { "detached" };
    for text in &done.removed {
        writeln!(out, "{what}: {}", plain(text))?;
    }
    for text in &done.left {
        writeln!(out, "stays: {}", plain(text))?;
    }
    if done.removed.is_empty() && done.left.is_empty() {
        writeln!(out, "nothing of tidegate's was found (pins: {})", args.pins.display())?;
    }
    if done.orphans > 0 {
        writeln!(
            out,
            "not asked for: {} hooks of other pins, or of none, in whose name nobody renews the lease; `tidegate detach \
             --orphans` detaches them",
            done.orphans
        )?;
    }
    Ok(exit)
}
