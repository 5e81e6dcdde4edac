//! A log that the test reads afterwards.

use std::fmt::Debug;
use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing_subscriber::filter::LevelFilter;

#[derive(Clone, Default)]
pub struct LogCapture(Arc<Mutex<Vec<u8>>>);

impl LogCapture {
    /// Captures all that this process logs from now on. For a test in [its own process](crate::child::ChildTest::in_own_process).
    pub fn of_process() -> Self {
        let capture = LogCapture::default();
        let writer = capture.clone();
        let log =
            tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_ansi(false).without_time();
        log.with_writer(move || writer.clone()).init();
        capture
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Notes what would be printed of a value, as it is and in full.
    pub fn note(&self, value: &impl Debug) {
        let text = format!("{value:?}\n{value:#?}\n");
        self.0.lock().unwrap().extend(text.into_bytes());
    }

    /// All of it, and begins anew.
    pub fn taken(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl Write for LogCapture {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
