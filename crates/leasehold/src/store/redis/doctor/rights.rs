//! What this user may do: tried, not asked, since a right may be lacking for more than one reason, and to ask is a right too.

use std::collections::BTreeSet;

use redis::{Cmd, RedisError, Value, cmd};

use super::super::address::without_arguments;
use super::Patient;
use crate::doctor::Finding;
use crate::token::{Owner, Token};

const PROBE: &str = include_str!("probe.lua");

/// What cannot be done, and why.
#[derive(Debug, Default)]
struct Lacking {
    commands: BTreeSet<String>,
    keys: bool,
    channels: bool,
}

/// Whether scripts run, and whether everything in them does.
pub(super) async fn all(server: &mut Patient, prefix: &str) -> Vec<Finding> {
    let user = server.ask::<String>(cmd("ACL").arg("WHOAMI")).await.ok();
    let mut lacking = Lacking::default();
    let scripts = match server.ask::<Value>(cmd("EVAL").arg("return 1").arg(0)).await {
        Ok(_) => Finding::good("scripts", "they run"),
        Err(error) => {
            lacking.note("EVAL", &text(&error));
            Finding::bad(
                "scripts",
                format!("they do not run: {}", text(&error)),
                "allow EVAL and EVALSHA: each operation on a lock is one script",
            )
        }
    };
    let number = Token::fresh(&Owner::this_process()).map(|token| token.expose()[..16].to_owned());
    let main = format!("{prefix}leasehold-doctor-{}", number.unwrap_or_default());
    let (line, wait) = (format!("{{{main}}}:line"), format!("{{{main}}}:wait"));
    let (fence, channel) = (format!("{{{prefix}}}:fence"), format!("{{{prefix}}}:leasehold-doctor"));
    let mut probe = cmd("EVAL");
    probe.arg(PROBE).arg(0).arg(&[&main, &line, &wait, &fence, &channel]);
    let failed: Vec<(String, String)> = server.ask(&probe).await.unwrap_or_default();
    failed.iter().for_each(|(command, why)| lacking.note(command, why));
    for (name, command) in outside(prefix, &channel) {
        if let Err(error) = server.ask::<Value>(&command).await {
            lacking.note(name, &text(&error));
        }
    }
    vec![scripts, lacking.finding(user.as_deref(), prefix)]
}

/// What is sent beside scripts. A digest that no script has is refused in other words than one that may not be sent.
fn outside(prefix: &str, channel: &str) -> [(&'static str, Cmd); 3] {
    let mut digest = cmd("EVALSHA");
    digest.arg("0".repeat(40)).arg(0);
    let mut scan = cmd("SCAN");
    scan.arg(0).arg("MATCH").arg(format!("{prefix}leasehold-doctor")).arg("COUNT").arg(1);
    let mut publish = cmd("PUBLISH");
    publish.arg(channel).arg("");
    [("EVALSHA", digest), ("SCAN", scan), ("PUBLISH", publish)]
}

impl Lacking {
    /// Errors of other kinds are told by whoever takes a lock.
    fn note(&mut self, command: &str, why: &str) {
        let why = why.to_ascii_lowercase();
        let is_a_right =
            ["permission", "the user executing the script can't"].iter().any(|it| why.contains(it));
        if is_a_right && why.contains("channel") {
            self.channels = true;
        } else if is_a_right && why.contains("access") && why.contains("key") {
            self.keys = true;
        } else if is_a_right || why.contains("unknown command") || why.contains("unknown redis command") {
            self.commands.insert(command.to_owned());
        }
    }

    fn finding(&self, user: Option<&str>, prefix: &str) -> Finding {
        let who = user.map_or_else(|| "this user".to_owned(), |user| format!("user `{user}`"));
        let mut may_not = Vec::new();
        let mut rules = Vec::new();
        if !self.commands.is_empty() {
            may_not.push(format!("send {}", self.commands.iter().cloned().collect::<Vec<_>>().join(", ")));
            rules.extend(self.commands.iter().map(|command| format!("+{}", command.to_ascii_lowercase())));
        }
        if self.keys {
            may_not.push("touch all the keys of locks".to_owned());
            rules.extend([format!("~{prefix}*"), format!("~{{{prefix}*")]);
        }
        if self.channels {
            may_not.push("publish to waiters".to_owned());
            rules.push(format!("&{{{prefix}}}:*"));
        }
        if may_not.is_empty() {
            return Finding::good("rights", format!("{who} may do all that locks need"));
        }
        let name = user.unwrap_or("USER");
        let more = if self.commands.contains("DEL") {
            " (what could not have been taken away was not tried)"
        } else {
            ""
        };
        let advice = format!(
            "`ACL SETUSER {name} {}`{more}, unless the server's configuration forbids it to everybody",
            rules.join(" ")
        );
        Finding::bad("rights", format!("{who} may not {}", may_not.join(", nor ")), advice)
    }
}

/// What the server said, in its own words.
fn text(error: &RedisError) -> String {
    let said = error.detail().map_or_else(|| error.to_string(), str::to_owned);
    without_arguments(&said).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    /// In the words of Redis 7.0 and of Valkey 9.
    #[test]
    fn what_is_lacking_is_known_by_what_servers_say() {
        let lacking = |why: &str| {
            let mut lacking = Lacking::default();
            lacking.note("SET", why);
            (lacking.commands.len(), lacking.keys, lacking.channels)
        };
        for why in [
            "NOPERM this user has no permissions to run the 'set' command",
            "ERR The user executing the script can't run this command or subcommand",
            "ERR ACL failure in script: User u has no permissions to run the 'set' command",
            "ERR Unknown Redis command called from script",
            "ERR Unknown command called from script",
        ] {
            assert_eq!(lacking(why), (1, false, false), "{why}");
        }
        for why in [
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
            "ERR ACL failure in script: No permissions to access a key",
        ] {
            assert_eq!(lacking(why), (0, true, false), "{why}");
        }
        for why in [
            "ERR The user executing the script can't publish to the channel mentioned in the command",
            "ERR ACL failure in script: No permissions to access a channel",
        ] {
            assert_eq!(lacking(why), (0, false, true), "{why}");
        }
        for why in ["NOSCRIPT No matching script.", "READONLY You can't write against a read only replica."] {
            assert_eq!(lacking(why), (0, false, false), "{why}");
        }
    }

    #[test]
    fn the_advice_is_the_rule_that_is_missing() {
        let mut lacking = Lacking { keys: true, channels: true, ..Lacking::default() };
        lacking.commands.insert("ZADD".to_owned());
        let finding = lacking.finding(Some("web"), "lock:");
        assert_eq!(finding.verdict, Verdict::Bad);
        assert_eq!(
            finding.what,
            "user `web` may not send ZADD, nor touch all the keys of locks, nor publish to waiters"
        );
        let advice = finding.advice.unwrap_or_default();
        assert!(advice.starts_with("`ACL SETUSER web +zadd ~lock:* ~{lock:* &{lock:}:*`"), "{advice}");
    }
}
