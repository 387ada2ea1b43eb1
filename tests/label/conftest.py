"""Fixtures of the tests in a browser."""

from browser_cases import browser as browser
from browser_cases import folder as folder
from browser_cases import page as page
