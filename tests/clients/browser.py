#!/usr/bin/env python3
"""The page in headless Chromium: asks with the sample picture and clip, reads the streamed answer and the timeline.

usage: browser.py --weft target/debug/weft [--screenshot FILE.png]
"""
import argparse
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from server import Server

WAIT_SECONDS = 30


def browser(profile):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--window-size=1280,900", f"--user-data-dir={profile}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))


def check(page, url, screenshot):
    wait = WebDriverWait(page, WAIT_SECONDS)
    find = lambda name: page.find_element(By.ID, name)
    page.get(url)
    wait.until(lambda _: "ready" in find("status").get_attribute("class"))
    Select(find("pipeline")).select_by_value("tiny-omni")
    assert find("notice").is_displayed(), "the page must say that the model's answers mean nothing"

    find("sample-image").click()
    find("sample-audio").click()
    wait.until(lambda _: len(page.find_elements(By.CSS_SELECTOR, "#media li")) == 2)
    find("prompt").send_keys("What is this?")
    find("send").click()
    wait.until(lambda _: "answer tokens" in find("figures").text)
    assert find("answer").text.strip(), "no answer"
    assert not find("error").is_displayed(), find("error").text
    spans = page.find_elements(By.CSS_SELECTOR, "#spans .span")
    assert len(spans) >= 3, "the timeline is empty"
    if screenshot:
        page.save_screenshot(screenshot)

    # A request that cannot work shows the server's own words.
    while buttons := page.find_elements(By.CSS_SELECTOR, "#media button"):
        buttons[0].click()
    find("prompt").clear()
    find("send").click()
    wait.until(lambda _: find("error").is_displayed())
    assert len(find("error").text) > 8
    # The refused request logs its own status; scripts and the content policy must be silent.
    broken = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE" and "/run" not in entry["message"]]
    assert not broken, broken

    page.set_window_size(420, 900)
    width = page.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0, f"the page is {width} pixels too wide for a telephone"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weft", type=lambda p: Path(p).resolve(), required=True)
    parser.add_argument("--screenshot")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as profile, Server(words.weft, []) as url:
        page = browser(profile)
        try:
            check(page, url, words.screenshot)
        finally:
            page.quit()
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
