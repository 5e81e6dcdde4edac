//! `ls` and `inspect`: who holds what, and who waits.

use leasehold::{Holder, Locks, Share, Status, Waiter};
use serde_json::{Value, json};

use crate::args::{Inspect, Ls, Output};
use crate::duration::short;
use crate::exit::{Failure, NOT_ACQUIRED};
use crate::{name, print};

pub(crate) async fn ls(locks: &Locks, args: &Ls, output: Output) -> Result<u8, Failure> {
    let found = locks.list(&args.prefix, args.limit).await?;
    match output {
        Output::Json => print(&format!("{}\n", json!(found.iter().map(as_json).collect::<Vec<_>>())))?,
        Output::Text => print(&table(&found))?,
    }
    Ok(0)
}

/// A held name is an exit code of its own, for scripts that only want to know.
pub(crate) async fn inspect(locks: &Locks, args: &Inspect, output: Output) -> Result<u8, Failure> {
    let name = name(&args.name)?;
    let status = locks.inspect(name.clone()).await?;
    let is_held = status.as_ref().is_some_and(|status| !status.holders.is_empty());
    match (output, &status) {
        (Output::Json, Some(status)) => print(&format!("{}\n", as_json(status)))?,
        (Output::Json, None) => {
            print(&format!("{}\n", json!({ "name": name.as_str(), "holders": [], "waiters": [] })))?
        }
        (Output::Text, None) => print(&format!("{name} is free\n"))?,
        (Output::Text, Some(status)) => {
            for holder in &status.holders {
                let Holder { owner, share, fence, remaining, nodes, .. } = holder;
                let fence = fence.map_or_else(String::new, |fence| format!(", fence {fence}"));
                let nodes = nodes.map_or_else(String::new, |nodes| {
                    let care = if nodes.is_degraded() { ", a bare majority" } else { "" };
                    format!(", on {} of {} nodes{care}", nodes.held, nodes.all)
                });
                let held = share_text(*share);
                print(&match holder.is_endless() {
                    true => format!("{name} is held by {owner}; `leasehold adopt` gives it one\n"),
                    false => format!(
                        "{name} is held{held} by {owner} for another {} unless renewed{fence}{nodes}\n",
                        short(*remaining)
                    ),
                })?;
            }
            for (place, waiter) in status.waiters.iter().enumerate() {
                print(&format!("{}. in line: {}{}\n", place + 1, waiter.owner, share_text(waiter.share)))?;
            }
        }
    }
    Ok(if is_held { NOT_ACQUIRED } else { 0 })
}

fn share_text(share: Share) -> String {
    match share {
        Share::Exclusive => String::new(),
        Share::Shared => " (shared)".to_owned(),
        Share::Permits(permits) => format!(" ({} of {} permits)", permits.take(), permits.limit()),
    }
}

fn as_json(status: &Status) -> Value {
    let share = |share: Share| match share {
        Share::Exclusive => json!("exclusive"),
        Share::Shared => json!("shared"),
        Share::Permits(permits) => json!({ "take": permits.take(), "limit": permits.limit() }),
    };
    let holder = |holder: &Holder| {
        let mut shown = json!({
            "owner": holder.owner.as_str(),
            "share": share(holder.share),
            "fence": holder.fence.map(leasehold::Fence::get),
            "remaining_ms": u64::try_from(holder.remaining.as_millis()).unwrap_or(u64::MAX),
        });
        // Only some stores have any.
        if let Some(nodes) = holder.nodes {
            let is_degraded = nodes.is_degraded();
            shown["nodes"] = json!({ "held": nodes.held, "all": nodes.all, "needed": nodes.needed, "degraded": is_degraded });
        }
        shown
    };
    let waiter = |waiter: &Waiter| json!({ "owner": waiter.owner.as_str(), "share": share(waiter.share) });
    json!({
        "name": status.name.as_str(),
        "holders": status.holders.iter().map(holder).collect::<Vec<_>>(),
        "waiters": status.waiters.iter().map(waiter).collect::<Vec<_>>(),
    })
}

/// Columns as wide as they need to be; nothing at all where there is nothing.
fn table(found: &[Status]) -> String {
    let mut rows = vec![["NAME", "HELD BY", "LEFT", "FENCE", "WAITING"].map(str::to_owned)];
    for status in found {
        let waiting = status.waiters.len().to_string();
        let row = |holder: Option<&Holder>, waiting: String| {
            [
                status.name.to_string(),
                holder.map_or_else(|| "-".to_owned(), |it| format!("{}{}", it.owner, share_text(it.share))),
                holder.filter(|it| !it.is_endless()).map_or_else(|| "-".to_owned(), |it| short(it.remaining)),
                holder.and_then(|it| it.fence).map_or_else(|| "-".to_owned(), |fence| fence.to_string()),
                waiting,
            ]
        };
        match status.holders.as_slice() {
            [] => rows.push(row(None, waiting)),
            [first, rest @ ..] => {
                rows.push(row(Some(first), waiting));
                rows.extend(rest.iter().map(|holder| row(Some(holder), String::new())));
            }
        }
    }
    if rows.len() == 1 {
        return String::new();
    }
    let widths: Vec<usize> =
        (0..5).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    rows.iter().fold(String::new(), |text, row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text + cells.collect::<Vec<_>>().join("  ").trim_end() + "\n"
    })
}
