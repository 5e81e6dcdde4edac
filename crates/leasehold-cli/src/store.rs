//! The store of this command: its URL, its password, and the wait for a store that is down.

use std::future::ready;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::doctor::Report;
use leasehold::{Clock, Error, Locks, Options};

use crate::args::Global;
use crate::config::{self, Chosen, ChosenBy};
use crate::duration::short;
use crate::exit::{Failure, without_advice};
use crate::progress::{Progress, so_far};
use crate::{log, password};

/// The first pause of `--store-wait`; it doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(crate) struct ChosenStore {
    chosen: Chosen,
    options: Options,
    wait: Option<Duration>,
}

impl ChosenStore {
    pub(crate) fn new(global: &Global, mut options: Options) -> Result<Self, Failure> {
        let chosen = config::store(global.store.as_deref())?;
        let scheme = chosen.url.split(':').next().unwrap_or("");
        let is_typed = chosen.by == ChosenBy::Option;
        log::debug(format_args!("the store is `{scheme}:…`, by {}", chosen.by));
        if scheme.eq_ignore_ascii_case("memory") {
            return Err(chosen.failure(
                "a `memory:` store is this process's own, so that nobody else would meet its locks; use `file:`",
            ));
        }
        let is_file = scheme.eq_ignore_ascii_case("file");
        // A password that the environment sets for other stores is ignored.
        if let (true, Some(path)) = (is_file, &global.password_file) {
            return Err(Failure::usage(format!(
                "--password-file {}: a store of this kind (`{scheme}:`) has no password",
                path.display()
            )));
        }
        if !is_file {
            if is_typed && password::is_in(&chosen.url) {
                log::warn(format_args!(
                    "every user of this machine can read the password in --store; use --password-file, or {}",
                    password::PASSWORD
                ));
            }
            let given = password::password(global.password_file.as_deref())?;
            let password = match &chosen.password_file {
                Some(path) if given.is_none() => password::password(Some(path)).map_err(|failure| {
                    Failure::configuration(format!("{}: {}", chosen.by, failure.message))
                })?,
                _ => given,
            };
            if let Some(password) = password {
                options = options.password(password);
            }
        }
        match options.warning(&chosen.url) {
            // A setting applies in many working directories, so it cannot be a relative path.
            Some(warning) if is_file && !is_typed => return Err(chosen.failure(warning)),
            Some(warning) => log::warn(warning),
            None => {}
        }
        Ok(ChosenStore { chosen, options, wait: global.store_wait })
    }

    pub(crate) async fn connect(&self) -> Result<Locks, Failure> {
        self.open(|options| options.connect(&self.chosen.url)).await
    }

    /// Returns `None` for a store that does not exist yet.
    pub(crate) async fn connect_existing(&self) -> Result<Option<Locks>, Failure> {
        self.open(|options| options.connect_existing(&self.chosen.url)).await
    }

    pub(crate) async fn examine(&self) -> Result<Report, Failure> {
        self.open(|options| options.examine(&self.chosen.url)).await
    }

    /// Calls `open` until the store answers, for at most `--store-wait`.
    ///
    /// # Cancel safety
    /// If dropped, it drops the attempt to open the store.
    async fn open<T, F: Future<Output = leasehold::Result<T>>>(
        &self,
        open: impl Fn(Options) -> F,
    ) -> Result<T, Failure> {
        let Some(wait) = self.wait else {
            return open(self.options.clone()).await.map_err(|error| self.failure(error));
        };
        let clock = Clock::system()?;
        let start = clock.now();
        let why = Mutex::new(String::new());
        let opening = async {
            let mut pause = PAUSE_MIN;
            loop {
                let error = match open(self.options.clone()).await {
                    Err(error) if is_down(&error) => error,
                    answer => return answer.map_err(|error| self.failure(error)),
                };
                *why.lock().unwrap_or_else(PoisonError::into_inner) =
                    format!(": {}", without_advice(&error.to_string()));
                let waited = clock.now().since(start);
                if waited >= wait {
                    return Err(self
                        .failure(error)
                        .and(&format!("; waited {} for the store", short(waited))));
                }
                clock.sleep_until(clock.now().plus(pause.min(wait - waited))).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        };
        let describe = |waited| {
            let why = why.lock().unwrap_or_else(PoisonError::into_inner);
            ready(format!("waiting for the store{why}{}", so_far(waited)))
        };
        Progress::new().during(&clock, opening, describe).await
    }

    fn failure(&self, error: Error) -> Failure {
        let is_inside_command = std::env::var_os("LEASEHOLD_NAME").is_some();
        match error {
            Error::Invalid { .. } => self.chosen.failure(error),
            // The default store has no place without a home directory.
            Error::Refused { .. } if self.chosen.by == ChosenBy::Default && !config::has_home() => {
                Failure::configuration(error.to_string())
            }
            // The `leasehold` that runs the command removed the password from its environment.
            error if is_inside_command && error.to_string().contains("it wants a password") => {
                Failure::from(error).and(&format!(
                    "; a command that `leasehold` runs does not inherit passwords: give this one the password with --password-file, \
                     or name the file in {} for both",
                    password::PASSWORD_FILE
                ))
            }
            error => error.into(),
        }
    }
}

/// Returns whether the same request may succeed later.
fn is_down(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } | Error::Quorum { .. } => true,
        Error::Refused { why, .. } => why.starts_with("LOADING"),
        _ => false,
    }
}
