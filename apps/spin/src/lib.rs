//! Spin server: works for as long as the request says, then answers
