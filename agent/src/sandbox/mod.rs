//! One sandbox: its record, its pure state machine, its driver.
