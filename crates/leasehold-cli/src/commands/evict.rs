//! `evict` and `adopt`: take a name from whoever holds it, at once or after a while, and not without asking.

use std::io::{IsTerminal, Write};

use leasehold::{Adopted, Locks, Name};
use serde_json::json;

use crate::args::{Adopt, Evict, Output};
use crate::duration::short;
use crate::exit::{Failure, NOT_ACQUIRED};
use crate::{name, print};

pub(crate) async fn evict(locks: &Locks, args: &Evict, output: Output) -> Result<u8, Failure> {
    let name = name(&args.name)?;
    if !args.yes && !confirmed(locks, &name).await? {
        return Ok(NOT_ACQUIRED);
    }
    let evicted = locks.evict(name.clone()).await?;
    let holders: Vec<&str> = evicted.holders.iter().map(leasehold::Owner::as_str).collect();
    match output {
        Output::Json => print(&format!("{}\n", json!({ "name": name.as_str(), "evicted": holders })))?,
        Output::Text if holders.is_empty() => print(&format!("{name} was not held\n"))?,
        Output::Text => print(&format!("{name} was taken from {}\n", holders.join(", ")))?,
    }
    Ok(0)
}

/// What has an end already is as it should be, and so is what is free.
pub(crate) async fn adopt(locks: &Locks, args: &Adopt, output: Output) -> Result<u8, Failure> {
    let name = name(&args.name)?;
    let ttl = short(args.ttl);
    if !args.yes {
        must_be_asked(&format!("to give `{name}` an end without being asked, say --yes"))?;
        let question = match locks.inspect(name.clone()).await?.and_then(|it| it.holders.into_iter().next()) {
            Some(holder) if holder.is_endless() => {
                format!("Have `{name}` end in {ttl}? Whoever holds it may be at work for longer.")
            }
            Some(holder) => format!("`{name}` is held by {}, and has an end. Go on?", holder.owner),
            None => format!("Nobody holds `{name}`. Go on?"),
        };
        if !is_yes(&question)? {
            return Ok(NOT_ACQUIRED);
        }
    }
    let adopted = locks.adopt(name.clone(), args.ttl).await?;
    let is_adopted = matches!(adopted, Adopted::Adopted { .. });
    let (holder, remaining, text) = match adopted {
        Adopted::Adopted { holder } => {
            let text = format!("{name} had no end; it is free in {ttl} at the latest");
            (Some(holder), Some(args.ttl), text)
        }
        Adopted::Ends { holder, remaining } => {
            let text = format!(
                "{name} is held by {holder} for another {} unless renewed, and was left as it is",
                short(remaining)
            );
            (Some(holder), Some(remaining), text)
        }
        Adopted::NotHeld => (None, None, format!("{name} was not held")),
    };
    let told = json!({
        "name": name.as_str(),
        "adopted": is_adopted,
        "holder": holder.as_ref().map(leasehold::Owner::as_str),
        "remaining_ms": remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
    });
    print(&match output {
        Output::Json => format!("{told}\n"),
        Output::Text => format!("{text}\n"),
    })?;
    Ok(0)
}

/// Whoever is evicted may be in the middle of something: a person has to say so, or a script that knows.
async fn confirmed(locks: &Locks, name: &Name) -> Result<bool, Failure> {
    must_be_asked(&format!("to evict the holder of `{name}` without being asked, say --yes"))?;
    let status = locks.inspect(name.clone()).await?;
    let holders = status.map(|status| status.holders).unwrap_or_default();
    let who: Vec<&str> = holders.iter().map(|holder| holder.owner.as_str()).collect();
    is_yes(&match who.as_slice() {
        [] => format!("Nobody holds `{name}`. Raise its fence all the same?"),
        who => format!("Take `{name}` from {}? It may be in the middle of its work.", who.join(", ")),
    })
}

/// There has to be a person to answer.
fn must_be_asked(otherwise: &str) -> Result<(), Failure> {
    match std::io::stdin().is_terminal() {
        true => Ok(()),
        false => Err(Failure::usage(otherwise)),
    }
}

fn is_yes(question: &str) -> Result<bool, Failure> {
    eprint!("{question} [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(Failure::internal)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
