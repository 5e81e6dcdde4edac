//! `lock`, `extend` and `unlock`: for scripts that cannot be wrapped. The lock outlives each of these commands; its token
//! is what they have in common.

use std::io::Read;

use leasehold::{Detached, Error, Fence, Locks, Token};
use serde_json::{Value, json};

use crate::args::{Extend, FromToken, Lock, Output, Unlock};
use crate::duration::short;
use crate::exit::Failure;
use crate::voice::Voice;
use crate::{name, print};

const TOKEN: &str = "LEASEHOLD_TOKEN";

pub(crate) async fn lock(locks: &Locks, args: &Lock, output: Output, voice: Voice) -> Result<u8, Failure> {
    let name = name(&args.name)?;
    let owner = args.owner.clone().unwrap_or_else(whoever_runs_this);
    let mutex = locks.mutex(name.clone()).ttl(args.ttl).owner(owner);
    let waiting = &args.waiting;
    let taken = match waiting.wait {
        _ if waiting.nonblock => mutex.wait(std::time::Duration::ZERO).lock_detached().await,
        Some(wait) => mutex.wait(wait).lock_detached().await,
        None => mutex.lock_detached().await,
    };
    let lease = match taken {
        Err(error @ Error::Busy { .. }) => {
            return Err(Failure::busy(waiting.conflict_exit_code, &error));
        }
        taken => taken?,
    };
    let (token, fence) = (lease.token().expose().to_owned(), lease.fence().map(Fence::get));
    let remaining = lease.remaining();
    let printed = match output {
        Output::Json => {
            let remaining_ms = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
            let told = json!({ "name": name.as_str(), "token": token, "fence": fence, "remaining_ms": remaining_ms });
            print(&format!("{told}\n"))
        }
        Output::Text => print(&format!("{token}\n")),
    };
    if let Err(failure) = printed {
        // Nobody has the token, so nobody could let go.
        lease.release().await?;
        return Err(failure);
    }
    if output == Output::Text {
        let fence = fence.map_or_else(String::new, |fence| format!(" with fence {fence}"));
        voice.tell(format_args!(
            "{name} is held for {}{fence}; its token lets you extend and unlock it",
            short(remaining)
        ));
    }
    Ok(0)
}

/// `host:user`: the process that takes such a lock is gone before anybody asks who it was.
fn whoever_runs_this() -> String {
    let process = leasehold::Owner::this_process();
    let host = process.as_str().rsplit_once(':').map_or("localhost", |(host, _)| host);
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    format!("{host}:{}", user.unwrap_or_else(|_| "detached".to_owned()))
}

pub(crate) async fn extend(locks: &Locks, args: &Extend, output: Output) -> Result<u8, Failure> {
    let mut lease = found(locks, &args.name, &args.token)?;
    lease.extend(args.ttl).await?;
    if output == Output::Json {
        let remaining_ms = u64::try_from(lease.remaining().as_millis()).unwrap_or(u64::MAX);
        print(&format!(
            "{}\n",
            json!({ "name": lease.names().first().as_str(), "remaining_ms": remaining_ms })
        ))?;
    }
    Ok(0)
}

pub(crate) async fn unlock(locks: &Locks, args: &Unlock, output: Output) -> Result<u8, Failure> {
    let lease = found(locks, &args.name, &args.token)?;
    let name = lease.names().first().to_string();
    lease.release().await?;
    if output == Output::Json {
        print(&format!("{}\n", json!({ "name": name, "released": true })))?;
    }
    Ok(0)
}

fn found(locks: &Locks, given: &std::ffi::OsStr, from: &FromToken) -> Result<Detached, Failure> {
    let (token, fence) = token(from)?;
    let lease = locks.detached(name(given)?, token)?;
    Ok(match fence {
        Some(fence) => lease.with_fence(fence),
        None => lease,
    })
}

/// The bare token, or what `lock --output json` printed. It is never shown: most of a mistyped secret is still one.
fn token(from: &FromToken) -> Result<(Token, Option<Fence>), Failure> {
    let text = match &from.token_file {
        Some(path) if path.as_os_str() == "-" => {
            let mut text = String::new();
            let read = std::io::stdin().take(64 * 1024).read_to_string(&mut text);
            read.map_err(|error| {
                Failure::usage(format!("the token could not be read from standard input: {error}"))
            })?;
            text
        }
        Some(path) => std::fs::read_to_string(path).map_err(|error| {
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
        Ok(Value::Object(told)) => {
            let fence = told.get("fence").and_then(Value::as_u64);
            (told.get("token").and_then(Value::as_str).unwrap_or("").to_owned(), fence)
        }
        _ => (text.to_owned(), None),
    };
    Ok((Token::parse(&token)?, fence.map(Fence::new).transpose()?))
}
