//! `doctor`: checks that the store is fit for locks, with advice for each finding.

use anstyle::{AnsiColor, Style};
use leasehold::doctor::{Finding, Report, Verdict};
use serde_json::{Value, json};

use crate::output::Answer;

/// Ends with the exit code of the worst finding.
pub(crate) fn doctor(report: &Report) -> Answer {
    let code = match report.verdict() {
        Verdict::Good => 0,
        Verdict::Caution => 1,
        Verdict::Bad => 2,
    };
    Answer::new(as_json(report), table(&report.findings)).with_code(code)
}

fn as_json(report: &Report) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "check": finding.check,
            "verdict": finding.verdict.to_string(),
            "what": finding.what,
            "advice": finding.advice,
        })
    };
    json!({
        "store": report.store,
        "verdict": report.verdict().to_string(),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

/// Shows the verdict, the check and the finding, with the advice below.
fn table(findings: &[Finding]) -> String {
    const VERDICT_WIDTH: usize = 7;
    let width = findings.iter().map(|finding| finding.check.chars().count()).max().unwrap_or(0);
    findings.iter().fold(String::new(), |text, finding| {
        let style = style(finding.verdict);
        let Finding { check, verdict, what, advice, .. } = finding;
        // Text of a server must not move the cursor.
        let line = format!("{style}{verdict:<VERDICT_WIDTH$}{style:#}  {check:<width$}  {}\n", plain(what));
        let advice = advice.as_ref().map_or_else(String::new, |advice| {
            format!("{:VERDICT_WIDTH$}  {:width$}  → {}\n", "", "", plain(advice))
        });
        text + &line + &advice
    })
}

/// Replaces characters that control the cursor or the direction of text: all that `escape_debug`
/// escapes except quotes.
fn plain(text: &str) -> String {
    let is_plain = |c: char| matches!(c, '\'' | '"' | '\\') || c.escape_debug().len() == 1;
    text.chars().map(|c| if is_plain(c) { c } else { ' ' }).collect()
}

fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Good => AnsiColor::Green.on_default(),
        Verdict::Caution => AnsiColor::Yellow.on_default().bold(),
        Verdict::Bad => AnsiColor::Red.on_default().bold(),
    }
}
