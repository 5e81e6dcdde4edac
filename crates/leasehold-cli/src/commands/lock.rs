//! `lock`, `extend` and `unlock`: for scripts that cannot run inside `run`. The lock outlives each
//! command; its token connects them.

use std::path::Path;
use std::time::Duration;

use leasehold::{Clock, Detached, Error, Fence, Holder, Locks, Names, Owner, Share, Token};
use serde_json::{Value, json};

use crate::args::{DetachedLock, Extend, Lock, Output};
use crate::config::Defaults;
use crate::duration::{as_ms, short};
use crate::exit::Failure;
use crate::input::{self, Pipes};
use crate::output::Answer;
use crate::progress::{Progress, held_names};
use crate::user::label_of_caller;
use crate::{ancestors, log, name};

const TOKEN: &str = "LEASEHOLD_TOKEN";

pub(crate) async fn lock(
    locks: &Locks,
    args: &Lock,
    defaults: Defaults,
    output: Output,
) -> Result<Answer, Failure> {
    if stdout_may_be_closed() {
        return Err(Failure::usage(
            "standard output is closed, or is /dev/null opened for reading and writing, so the token would be lost, and nobody \
             could unlock or extend; keep what `lock` prints, as in TOKEN=$(leasehold lock …), or discard it with `> /dev/null` \
             (in Python: stdout=open(os.devnull, \"w\"), not subprocess.DEVNULL)",
        ));
    }
    let name = name(&args.name)?;
    let owner = args.owner.as_ref().map(Owner::new).transpose()?.or(defaults.owner);
    let owner = owner.unwrap_or_else(label_of_caller);
    let wait = args.waiting.limit();
    let mutex = locks.mutex(name.clone()).ttl(args.ttl).owner(owner.as_str()).wait(wait);
    let names = Names::from(name.clone());
    if let Some(warning) = ancestors::warning(&names, Share::Exclusive, wait) {
        log::warn(warning);
    }
    let describe = |waited| held_names(locks, &names, &owner, waited);
    let lease = match Progress::new().during(&Clock::system()?, mutex.lock_detached(), describe).await {
        Err(error @ Error::Busy { .. }) => {
            return Err(Failure::busy(args.waiting.conflict_exit_code, &error));
        }
        result => result?,
    };
    let (token, fence) = (lease.token().expose().to_owned(), lease.fence().map(Fence::get));
    let remaining = lease.remaining();
    let object =
        json!({ "name": name.as_str(), "token": token, "fence": fence, "remaining_ms": as_ms(remaining) });
    if let Err(failure) = Answer::line(object, token).print(output) {
        // Without the token, the caller could not unlock.
        lease.release().await?;
        return Err(failure);
    }
    if output == Output::Text {
        let fence = fence.map_or_else(String::new, |fence| format!(" with fence {fence}"));
        log::info(format_args!(
            "{name} is held for {}{fence}; its token lets you extend and unlock it",
            short(remaining)
        ));
    }
    Ok(Answer::default())
}

/// Returns whether standard output may have been closed when this process started. Rust's runtime
/// then opens /dev/null there, for reading and writing. A shell's `> /dev/null` is for writing
/// only; a parent that opens it for both (Python's `subprocess.DEVNULL`) looks the same.
fn stdout_may_be_closed() -> bool {
    const DEV_NULL: (u32, u32) = (1, 3);
    let stdout = std::io::stdout();
    let is_null = rustix::fs::fstat(&stdout).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device()
            && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == DEV_NULL
    });
    is_null && rustix::fs::fcntl_getfl(&stdout).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::RDWR))
}

pub(crate) async fn extend(locks: &Locks, args: &Extend, output: Output) -> Result<Answer, Failure> {
    let mut lease = attach(locks, &args.lock)?;
    lease.extend(args.ttl).await?;
    if output == Output::Text {
        return Ok(Answer::default());
    }
    let remaining_ms = as_ms(remaining(locks, &lease).await);
    Ok(Answer::new(json!({ "name": lease.names().first().as_str(), "remaining_ms": remaining_ms }), ""))
}

/// Reads how long the lock lasts, which an extension does not return on every store.
async fn remaining(locks: &Locks, lease: &Detached) -> Duration {
    let status = locks.inspect(lease.names().first().clone()).await.ok().flatten();
    let is_ours = |holder: &&Holder| {
        let same_fence = lease.fence().is_none() || holder.fence == lease.fence();
        same_fence && holder.owner == lease.token().owner() && !holder.is_endless()
    };
    let seen = status.and_then(|status| status.holders.iter().find(is_ours).map(|holder| holder.remaining));
    seen.unwrap_or_default().max(lease.remaining())
}

pub(crate) async fn unlock(locks: &Locks, lock: &DetachedLock) -> Result<Answer, Failure> {
    let lease = attach(locks, lock)?;
    let name = lease.names().first().to_string();
    lease.release().await?;
    Ok(Answer::new(json!({ "name": name, "released": true }), ""))
}

fn attach(locks: &Locks, lock: &DetachedLock) -> Result<Detached, Failure> {
    let (token, fence) = token(lock.token_file.as_deref())?;
    let lease = locks.detached(name(&lock.name)?, token)?;
    Ok(match fence {
        Some(fence) => lease.with_fence(fence),
        None => lease,
    })
}

/// Reads the token, or the output of `lock --output json`. No message shows it: a mistyped secret
/// is still most of a secret.
fn token(file: Option<&Path>) -> Result<(Token, Option<Fence>), Failure> {
    let text = match file {
        Some(path) if path.as_os_str() == "-" => input::read(std::io::stdin()).map_err(|error| {
            Failure::usage(format!("the token could not be read from standard input: {error}"))
        })?,
        Some(path) => input::open(path, Pipes::Read).and_then(|(file, _)| input::read(file)).map_err(|error| {
            Failure::usage(format!(
                "the token could not be read from `{}`: {error}; name the file that has what `lock` printed",
                path.display()
            ))
        })?,
        None => std::env::var(TOKEN).map_err(|_| {
            Failure::usage(format!(
                "whose lock? Give the token that `lock` printed, in {TOKEN} or with --token-file FILE"
            ))
        })?,
    };
    let text = text.trim();
    let (token, fence) = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(object)) => {
            let fence = object.get("fence").and_then(Value::as_u64);
            (object.get("token").and_then(Value::as_str).unwrap_or("").to_owned(), fence)
        }
        _ => (text.to_owned(), None),
    };
    Ok((Token::parse(&token)?, fence.map(Fence::new).transpose()?))
}
