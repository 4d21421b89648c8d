"""Rollouts: prompts, requests to the engines, rewards, and dynamic sampling."""
