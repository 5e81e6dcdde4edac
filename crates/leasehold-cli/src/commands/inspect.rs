//! `ls` and `inspect`: show the holders and waiters of names.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::time::Duration;

use leasehold::{Clock, Holder, Locks, Name, Options, Owner, Share, Status, Waiter};
use rustix::process::Signal;
use rustix::termios::tcgetwinsize;
use serde_json::{Value, json};
use signal_hook::iterator::Signals;
use tokio::sync::oneshot;

use crate::args::{Global, Ls, Output};
use crate::duration::{as_ms, short};
use crate::exit::{Failure, Kind, NOT_ACQUIRED};
use crate::output::{Answer, print};
use crate::run_record::RunRecord;
use crate::store::ChosenStore;
use crate::{log, name, timestamp};

/// The number of run records that are read at the same time.
const RECORD_READS_MAX: usize = 64;

/// The default interval of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// Refuses `--watch 5s`, where `5s` would be the PREFIX.
pub(crate) fn check(args: &Ls) -> Result<(), Failure> {
    let prefix = &args.prefix;
    match args.watch {
        Some(None) if crate::duration::parse(prefix).is_ok() => Err(Failure::usage(format!(
            "`{prefix}` is read as the PREFIX of names; write `--watch={prefix}`, or `--watch=2s {prefix}` for the names that start \
             with it"
        ))),
        _ => Ok(()),
    }
}

/// Lists names. `None` is a store that does not exist yet: it has no locks.
pub(crate) async fn ls(locks: Option<Locks>, args: &Ls, global: &Global) -> Result<Answer, Failure> {
    if let Some(every) = args.watch {
        let interrupted = interrupted().map_err(Failure::internal)?;
        return tokio::select! {
            biased;
            _ = interrupted => Ok(Answer::default()),
            never = watch(locks, args, global, every.unwrap_or(WATCH_INTERVAL)) => match never? {},
        };
    }
    let (list, truncated) = listing(locks.as_ref(), args, global.output).await?;
    print(&list)?;
    if truncated {
        let limit = args.limit;
        log::warn(format_args!(
            "there are more than the {limit} names shown; raise --limit, or give the PREFIX of the names you want"
        ));
    }
    Ok(Answer::default())
}

/// Repeats the list; tries again each time to open a store that does not exist yet.
async fn watch(
    mut locks: Option<Locks>,
    args: &Ls,
    global: &Global,
    every: Duration,
) -> Result<Infallible, Failure> {
    let clock = Clock::system()?;
    let mut has_shown = false;
    loop {
        let list = async {
            if locks.is_none() && has_shown {
                locks = ChosenStore::new(global, Options::default())?.connect_existing().await?;
            }
            listing(locks.as_ref(), args, global.output).await
        };
        match list.await {
            Ok((list, truncated)) => {
                print(frame(&list, truncated, global.output, every))?;
                has_shown = true;
            }
            // The store may be back for the next list.
            Err(failure) if has_shown && failure.kind == Kind::Unavailable => log::warn(failure.message),
            Err(failure) => return Err(failure),
        }
        clock.sleep_until(clock.now().plus(every)).await;
    }
}

/// Formats one list of `--watch`. At a terminal it replaces the one before.
fn frame(list: &str, truncated: bool, output: Output, every: Duration) -> String {
    if output == Output::Json {
        return list.to_owned();
    }
    let list = if list.is_empty() { "nothing is held\n" } else { list };
    let notice = truncated.then_some("there are more names; raise --limit");
    if !std::io::stdout().is_terminal() {
        let notice = notice.map_or_else(String::new, |notice| format!("{notice}\n"));
        return format!("{}\n{list}{notice}\n", timestamp::now());
    }
    let size = tcgetwinsize(std::io::stdout());
    let (rows, columns) = size.map_or((0, 0), |size| (usize::from(size.ws_row), usize::from(size.ws_col)));
    // Some terminals report zero.
    let (rows, columns) = (if rows == 0 { 24 } else { rows }, if columns == 0 { 80 } else { columns });
    let title = format!("{}, every {}; Ctrl-C ends it", timestamp::now(), short(every));
    let lines = std::iter::once(title.as_str()).chain(list.lines());
    // One line or row more would scroll the screen.
    let lines =
        lines.take((rows.max(2) - 1).saturating_sub(usize::from(truncated))).chain(notice).map(|line| {
            let line: String = line.chars().take(columns).collect();
            format!("{line}\x1b[K\r\n")
        });
    format!("\x1b[H{}\x1b[J", lines.collect::<String>())
}

fn interrupted() -> std::io::Result<oneshot::Receiver<()>> {
    let (sender, receiver) = oneshot::channel();
    let mut signals = Signals::new([Signal::INT.as_raw(), Signal::TERM.as_raw()])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        signals.forever().next();
        let _ = sender.send(());
    })?;
    Ok(receiver)
}

/// Returns the printed list, and whether there are more names.
async fn listing(locks: Option<&Locks>, args: &Ls, output: Output) -> Result<(String, bool), Failure> {
    let (found, truncated) = match locks {
        Some(locks) => {
            // One more than is shown tells whether there are more.
            let mut found = locks.list(&args.prefix, args.limit.saturating_add(1)).await?;
            let truncated = found.len() > args.limit;
            found.truncate(args.limit);
            (with_records(locks, found).await, truncated)
        }
        None => (Vec::new(), false),
    };
    let list = match output {
        Output::Json => {
            let names: Vec<Value> = found.iter().map(|(status, run)| as_json(status, run.as_ref())).collect();
            format!("{}\n", json!({ "names": names, "truncated": truncated }))
        }
        Output::Text => table(&found),
    };
    Ok((list, truncated))
}

async fn with_records(locks: &Locks, found: Vec<Status>) -> Vec<(Status, Option<RunRecord>)> {
    let mut records = Vec::with_capacity(found.len());
    for part in found.chunks(RECORD_READS_MAX) {
        let read = |status: &Status| tokio::spawn(RunRecord::load(locks.clone(), status.name.clone()));
        for read in part.iter().map(read).collect::<Vec<_>>() {
            records.push(read.await.ok().flatten());
        }
    }
    found.into_iter().zip(records).collect()
}

/// Shows one name. A held name has its own exit code, for scripts.
pub(crate) async fn inspect(locks: Option<&Locks>, given: &OsStr) -> Result<Answer, Failure> {
    let name = name(given)?;
    let (status, run) = match locks {
        Some(locks) => (locks.inspect(&name).await?, RunRecord::load(locks.clone(), name.clone()).await),
        None => (None, None),
    };
    let is_unknown = status.is_none();
    let status = status.unwrap_or(Status { name, holders: Vec::new(), waiters: Vec::new() });
    let free = is_unknown.then(|| format!("{} is free", status.name));
    let holders = status.holders.iter().map(|holder| holder_line(&status.name, holder));
    let waiters = status.waiters.iter().zip(1..).map(|(waiter, place)| {
        let since =
            waiter.waiting_for.map_or_else(String::new, |it| format!(", since {}", timestamp::ago(it)));
        format!("{place}. in line: {}{}{since}", waiter.owner, share_text(waiter.share))
    });
    let last_run = run.as_ref().map(|run| run.text(&status));
    let lines = free.into_iter().chain(holders).chain(waiters).chain(last_run);
    let text: String = lines.map(|line| line + "\n").collect();
    let code = if status.holders.is_empty() { 0 } else { NOT_ACQUIRED };
    Ok(Answer::new(as_json(&status, run.as_ref()), text).with_code(code))
}

fn holder_line(name: &Name, holder: &Holder) -> String {
    let Holder { owner, share, fence, remaining, nodes, held_for, .. } = holder;
    if holder.is_endless() {
        return format!("{name} is held by {owner}; `leasehold adopt` gives it one");
    }
    let fence = fence.map_or_else(String::new, |fence| format!(", fence {fence}"));
    let since = held_for.map_or_else(String::new, |it| format!(" since {},", timestamp::ago(it)));
    let nodes = nodes.map_or_else(String::new, |nodes| {
        let care = if nodes.is_degraded() { ", a bare majority" } else { "" };
        format!(", on {} of {} nodes{care}", nodes.held, nodes.all)
    });
    let (share, left) = (share_text(*share), short(*remaining));
    format!("{name} is held{share} by {owner}{since} for another {left} unless renewed{fence}{nodes}")
}

fn share_text(share: Share) -> String {
    match share {
        Share::Exclusive => String::new(),
        Share::Shared => " (shared)".to_owned(),
        Share::Permits(permits) => format!(" ({} of {} permits)", permits.take(), permits.limit()),
    }
}

fn as_json(status: &Status, run: Option<&RunRecord>) -> Value {
    let holder = |holder: &Holder| {
        let mut shown = client_json(&holder.owner, holder.share, "held_ms", holder.held_for);
        shown["fence"] = json!(holder.fence.map(leasehold::Fence::get));
        shown["remaining_ms"] = json!(as_ms(holder.remaining));
        if let Some(nodes) = holder.nodes {
            let is_degraded = nodes.is_degraded();
            shown["nodes"] = json!({ "held": nodes.held, "all": nodes.all, "needed": nodes.needed, "degraded": is_degraded });
        }
        shown
    };
    let waiter = |waiter: &Waiter| client_json(&waiter.owner, waiter.share, "waiting_ms", waiter.waiting_for);
    json!({
        "name": status.name.as_str(),
        "holders": status.holders.iter().map(holder).collect::<Vec<_>>(),
        "waiters": status.waiters.iter().map(waiter).collect::<Vec<_>>(),
        "once": run.map(|run| run.as_json(status)),
    })
}

/// A holder or waiter, with `time` as `time_ms`. A label of an operator's choice has no process.
fn client_json(owner: &Owner, share: Share, time_ms: &str, time: Option<Duration>) -> Value {
    let process = owner.process();
    let process = process.as_ref();
    json!({
        "owner": owner.as_str(),
        "share": match share {
            Share::Exclusive => json!("exclusive"),
            Share::Shared => json!("shared"),
            Share::Permits(permits) => json!({ "take": permits.take(), "limit": permits.limit() }),
        },
        time_ms: time.map(as_ms),
        "since": time.map(timestamp::ago),
        "host": process.map(|process| &process.host),
        "pid": process.map(|process| process.pid),
        "user": process.and_then(|process| process.user.as_ref()),
        "command": process.and_then(|process| process.command.as_ref()),
    })
}

/// The table of names. The column ONCE appears only with a run of `--once-per`.
fn table(found: &[(Status, Option<RunRecord>)]) -> String {
    let none = || "-".to_owned();
    let mut rows =
        vec![["NAME", "HELD BY", "HELD FOR", "LEFT", "FENCE", "WAITING", "ONCE"].map(str::to_owned)];
    for (status, run) in found {
        let waiting = match status.waiters.first().and_then(|first| first.waiting_for) {
            Some(longest) => format!("{} (for {})", status.waiters.len(), short(longest)),
            None => status.waiters.len().to_string(),
        };
        let row = |holder: Option<&Holder>, waiting: String, run: String| {
            [
                status.name.to_string(),
                holder.map_or_else(none, |it| format!("{}{}", it.owner, share_text(it.share))),
                holder.and_then(|it| it.held_for).map_or_else(none, short),
                holder.filter(|it| !it.is_endless()).map_or_else(none, |it| short(it.remaining)),
                holder.and_then(|it| it.fence).map_or_else(none, |fence| fence.to_string()),
                waiting,
                run,
            ]
        };
        let run = run.as_ref().map_or_else(none, |run| run.word(status));
        match status.holders.as_slice() {
            [] => rows.push(row(None, waiting, run)),
            [first, rest @ ..] => {
                rows.push(row(Some(first), waiting, run));
                rows.extend(rest.iter().map(|holder| row(Some(holder), String::new(), String::new())));
            }
        }
    }
    if rows.len() == 1 {
        return String::new();
    }
    let columns = if found.iter().any(|(_, run)| run.is_some()) { 7 } else { 6 };
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    rows.iter().fold(String::new(), |text, row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text + cells.collect::<Vec<_>>().join("  ").trim_end() + "\n"
    })
}
