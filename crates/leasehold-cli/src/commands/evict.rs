//! `evict`: takes a name from whoever holds it, after asking.

use std::io::{IsTerminal, Write};

use leasehold::Locks;
use serde_json::json;

use crate::args::{Evict, Output};
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

/// Whoever is evicted may be in the middle of something: a person has to say so, or a script that knows.
async fn confirmed(locks: &Locks, name: &leasehold::Name) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!(
            "to evict the holder of `{name}` without being asked, say --yes"
        )));
    }
    let status = locks.inspect(name.clone()).await?;
    let holders = status.map(|status| status.holders).unwrap_or_default();
    let who: Vec<&str> = holders.iter().map(|holder| holder.owner.as_str()).collect();
    match who.as_slice() {
        [] => eprint!("Nobody holds `{name}`. Raise its fence all the same? [y/N] "),
        who => eprint!("Take `{name}` from {}? It may be in the middle of its work. [y/N] ", who.join(", ")),
    }
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(Failure::internal)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
